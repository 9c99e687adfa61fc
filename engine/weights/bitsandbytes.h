#pragma once
/* Matrices that bitsandbytes has packed. */
#include "engine/weights/matrix_source.h"

/* NAME.weight: two NF4 codes per byte of [rows, cols], the first in the high nibble. absmax: NAME.weight.absmax, a
 * scale for each block of codes: F32, or U8 codes of scales that are quantized again (nested_absmax, nested_quant_map).
 * NAME.weight.quant_state.bitsandbytes__nf4 is JSON with the sizes of both kinds of blocks. The codes are used in
 * place, the scales expanded to F32. */
struct mat bitsandbytes_load(const struct matrix_source *s, const struct tensor *t, const struct tensor *absmax);
/* The same of FP4 codes (state: NAME.weight.quant_state.bitsandbytes__fp4). They become E4M3, which has their levels
 * times 12: a byte each. Returns the rows of the parameter. */
struct mat bitsandbytes_load_fp4(const struct matrix_source *s, const struct tensor *t, const struct tensor *absmax,
                                 const struct tensor *state);
/* NAME.weight: I8 [rows, cols], used in place. largest: NAME.SCB, the largest magnitude of each row, which 127 stands
 * for. Activations that bitsandbytes rounds to 8 bits stay as they are. */
struct mat bitsandbytes_load_bytes(const struct matrix_source *s, const struct tensor *t, const struct tensor *largest);
