#pragma once
/* Constant tables of the BF16 magnitude of each E4M3 code, times 2^lift: for 128-byte look-ups. */
#include <stdint.h>

#define E4M3_BF16(c, lift) \
    ((c) == 127 ? 0x7fc0 \
     : (c) >= 8 ? (((c) >> 3) + 120 + (lift)) << 7 | ((c)&7) << 4 \
     : (c) >= 4 ? (120 + (lift)) << 7 | ((c)&3) << 5 \
     : (c) >= 2 ? (119 + (lift)) << 7 | ((c)&1) << 6 \
     : (c)      ? (118 + (lift)) << 7 \
                : 0)
#define E4M3_HIGH(c, lift)  (uint8_t)(E4M3_BF16(c, lift) >> 8)
#define E4M3_LOW(c, lift)   (uint8_t)(E4M3_BF16(c, lift) & 0xff)
#define E4M3_4(of, c, lift) of(c, lift), of((c) + 1, lift), of((c) + 2, lift), of((c) + 3, lift)
#define E4M3_16(of, c, lift) \
    E4M3_4(of, c, lift), E4M3_4(of, (c) + 4, lift), E4M3_4(of, (c) + 8, lift), E4M3_4(of, (c) + 12, lift)
#define E4M3_64(of, c, lift) \
    E4M3_16(of, c, lift), E4M3_16(of, (c) + 16, lift), E4M3_16(of, (c) + 32, lift), E4M3_16(of, (c) + 48, lift)
#define E4M3_ALL(of, lift) E4M3_64(of, 0, lift), E4M3_64(of, 64, lift)
