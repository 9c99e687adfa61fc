#pragma once
/* The values that codes of GGUF's IQ4 and of ik_llama.cpp's IQ4_KS, IQ5_KS and IQ2_KL stand for, in order of the codes;
 * a code of IQ2_KL stands for two columns. V(value) and P(first, second) are macros of the caller. Source:
 * ggml-common.h, iq4k_values, iq5nl_values and iq2kl_values. */
/* clang-format off */
#define VALUES_IQ4(V) \
    V(-127) V(-104) V(-83) V(-65) V(-49) V(-35) V(-22) V(-10) V(1) V(13) V(25) V(38) V(53) V(69) V(89) V(113)
#define VALUES_IQ5(V) \
    V(-126) V(-114) V(-103) V(-92) V(-83) V(-74) V(-65) V(-57) V(-50) V(-43) V(-36) V(-30) V(-24) V(-18) V(-12) V(-6) \
    V(-1) V(5) V(11) V(17) V(23) V(29) V(36) V(43) V(51) V(59) V(68) V(77) V(87) V(97) V(109) V(121)
#define VALUES_IQ2_KL(P) \
    P(-63, -23) P(-63, 13) P(-40, -63) P(-40, -10) P(-40, 13) P(-40, 47) P(-23, -40) P(-23, -23) \
    P(-23, 1) P(-23, 13) P(-23, 28) P(-10, -63) P(-10, 1) P(-10, 13) P(-10, 47) P(1, -23) \
    P(1, -10) P(1, 1) P(1, 13) P(1, 28) P(13, -40) P(13, -23) P(13, -10) P(13, 1) \
    P(13, 13) P(28, -63) P(28, -23) P(28, 1) P(28, 28) P(28, 47) P(47, -23) P(47, 13)
