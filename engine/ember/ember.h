#pragma once
/* The built-in model's checkpoint directory, inside the binary: file names and bytes, for file_embed. */
#include "base/file.h"
extern const struct file_embedded ember_files[];
