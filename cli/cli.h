#pragma once
/* Entry of the command line. All output to users and scripts is printed by this folder. */

/* Runs the command line and returns the exit code. Call once, after file_embed() of the built-in checkpoint. */
int cli_main(int argc, char **argv);
