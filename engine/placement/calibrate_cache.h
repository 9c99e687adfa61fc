#pragma once
/* The file that keeps a calibration, and the fingerprint by which it is found again. */
#include "engine/placement/calibrate.h"

void calibrate_cpu_brand(char out[49]); /* the CPUID brand string */
/* out [CALIBRATE_FINGERPRINT_LEN]: of the version, CPU, threads, devices and what is measured; "": no memory */
void calibrate_fingerprint(const struct calibrate_options *o, char *out);
/* False if there is no such file, or it is damaged or of another machine, which is logged. */
bool calibrate_read_cached(struct cost_machine *out, const char *path, const char *print);
void calibrate_write_cached(const struct cost_machine *m, const char *path, const char *print); /* logs a failure */
