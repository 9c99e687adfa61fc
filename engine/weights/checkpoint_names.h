#pragma once
/* Names of tensors as a family has them, where a file has others. Called once, before any tensor is claimed. Errors:
 * ERR_MODEL, two tensors get one name; ERR_MEMORY. */
#include "engine/model/arch.h"
#include "engine/weights/checkpoint.h"

/* Gives the tensors of a text model the prefix that its family has, whatever prefix the file has before its embedding
 * and layers: that of a larger model, of another version of transformers or of a program's wrapper, or none. Names that
 * are already the family's, or of which two models could be meant, stay. */
int checkpoint_name_text(struct checkpoint *c, const struct arch *arch, struct error *e);
/* Gives the tensors of a vision tower the prefix that its family's names have, of which the first is that of the first
 * matrix. Later names may be NULL. */
int checkpoint_name_tower(struct checkpoint *c, const char *const *names, size_t n_names, struct error *e);
/* Gives tensors of experts that modelopt numbered behind their matrices, experts.gate_proj.7.weight, the usual names:
 * experts.7.gate_proj.weight. */
int checkpoint_name_experts(struct checkpoint *c, struct error *e);
