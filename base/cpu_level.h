#pragma once
/* Levels of instruction sets: option values, what kernels are built for, and what emulated devices compute with. */
enum cpu_level { CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_AMX, CPU_LEVELS };
const char *cpu_level_name(enum cpu_level l);    /* "scalar", "avx2", "avx512", "amx" */
enum cpu_level cpu_level_find(const char *name); /* CPU_LEVELS: unknown name */
