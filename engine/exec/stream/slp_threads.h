#pragma once
/* The three threads of a rank: slp_loader.c, slp_compute.c, slp_unloader.c. rank: struct slp_rank. */
void *slp_loader_thread(void *rank);
void *slp_compute_thread(void *rank);
void *slp_unloader_thread(void *rank);
