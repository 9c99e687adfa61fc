/* The buffers of a workspace, one row each: ROW(type of a number, field of struct work, life, numbers per token of the
 * config c, further members of struct work_row). 0 numbers: models of this kind lack the buffer. work.h makes the
 * fields of these rows; work_open.c the table work_rows, from which allocation, sizes, slices, copies between devices
 * and the buffers of prefills and paged batches follow. Included by these two files; defines nothing itself. */

/* Positions */
ROW(int32_t, pos, WORK_INPUT, 1)
ROW(int32_t, tokens, WORK_INPUT, 1)
/* [3] time, row and column of a token of a prompt with images; M-RoPE only, CPU only */
ROW(int32_t, place, WORK_INPUT, c->rope.section[0] ? 3 : 0)
/* last position that a token sees: its own, or that of its image's last one */
ROW(int32_t, last_seen, WORK_INPUT, c->sees_whole_images)
/* sequence length of a token; LongRoPE only */
ROW(int32_t, seq_length, WORK_INPUT, c->rope.kind == ROPE_LONG)
ROW(float, cos, WORK_LAYER, rope_row_floats(c))
ROW(float, sin, WORK_LAYER, rope_row_floats(c))
ROW(float, second_cos, WORK_LAYER, c->second_rope.dim / 2)
ROW(float, second_sin, WORK_LAYER, c->second_rope.dim / 2)
ROW(float, inv_freq, WORK_SCRATCH, rope_floats(c), .rows = one_row)
/* FoPE: cos and sin of the frequencies, [FOPE_ROWS, rope.dim / 2] twice */
ROW(float, fope_basis, WORK_SCRATCH, c->rope.fope_pairs ? c->rope.dim : 0, .rows = fope_rows)

/* The residual stream, and what layers pass on */
/* [hidden] the residual stream; with several streams, the output of the current block */
ROW(float, x, WORK_LAYER, c->hidden, .room = config_row_width, .reads = reads_stream)
/* [hidden] normed input of the block */
ROW(float, xn, WORK_EXPERTS, c->hidden, .room = config_row_width)
/* [2, rows, hidden] normed inputs of keys and of values, where they are not xn (mixes_kv) */
ROW(float, kv_in, WORK_SCRATCH, c->streams.block_layers ? 2 * c->hidden : 0)
/* scratch of messages between passes */
ROW(float, messages, WORK_SCRATCH, c->streams.loop_passes > 1 ? 7 * c->hidden + c->streams.message_rank : 0)
/* [rows, norm_gate_rank], then [rows, hidden], or the widest latent with a gate */
ROW(float, norm_gates, WORK_SCRATCH, norm_gate_floats(c))
/* several streams: [n, hidden]; [n] weight of x in each stream; [(2 + n) * n] input of op_mix */
ROW(float, streams, WORK_LAYER, c->streams.n * c->hidden, .reads = reads_rows)
ROW(float, post, WORK_LAYER, c->streams.n, .reads = reads_rows)
ROW(float, mix, WORK_SCRATCH, mix_floats(c))
/* gated streams and n-grams: [n, hidden] each */
ROW(float, stream_norm, WORK_SCRATCH, stream_gate_floats(c))
ROW(float, stream_gates, WORK_SCRATCH, stream_gate_floats(c))
/* embeddings of n-grams of all layers (config_ngram_floats), for layers without their table */
ROW(float, ngrams, WORK_INPUT, config_ngram_floats(c))
/* embeddings of n-grams of a layer; with config.input_ngrams of one hash */
ROW(float, ngram, WORK_SCRATCH, ngram_floats(c), .rows = ngram_batch)
/* [rows, hashes] their rows of the table; with config.input_ngrams [hashes, rows] */
ROW(int32_t, ngram_rows, WORK_SCRATCH, ngram_hashes(c), .rows = ngram_batch)
/* [3, rows, token_dim] scratch */
ROW(float, token_vectors, WORK_SCRATCH, 3 * c->token_dim)
/* [hidden] what a layer keeps for the next: its FFN input, or a dense FFN's output; or its own input
 * (config.reads_early) */
ROW(float, kept, WORK_LAYER, config_keeps_rows(c) ? c->hidden : 0, .reads = reads_kept)
/* what layers pass to later ones: a router's MLP to the next; the embedding, keys and values */
ROW(float, carried, WORK_LAYER, c->carried, .reads = reads_rows)

/* Attention */
/* [n_heads * head_dim] */
ROW(float, q, WORK_QUERIES, c->n_heads * c->head_dim)
/* cached floats of a layer: latent and rope key, or k [n_kv_heads * head_dim], then v */
ROW(float, kv, WORK_SCRATCH, cached_floats(c))
/* [n_heads * v_dim] output of attention or of a mixer */
ROW(float, att, WORK_SCRATCH, att_floats(c))
/* [rows, q_lora]; with q_raw then [rows, 2 * q_lora], the same and the raw latent */
ROW(float, q_latent, WORK_SCRATCH, (c->q_raw ? 3 : 1) * c->q_lora)
/* absorbed MLA: [absorb_rows, n_heads * (kv_lora + rope)] queries; [absorb_rows, n_heads * kv_lora] */
ROW(float, absorbed_q, WORK_SCRATCH, c->kv_lora ? (c->kv_lora + c->qk_rope) * c->n_heads : 0, .rows = absorb_rows)
ROW(float, absorbed_out, WORK_SCRATCH, c->n_heads * c->kv_lora, .rows = absorb_rows)
/* expanded MLA: [keys, kv_lora + rope]; [keys, G, head_dim] then [keys, G, v_dim]; grown on demand */
ROW(float, latent, WORK_SCRATCH, 0)
ROW(float, expanded_kv, WORK_SCRATCH, 0)
/* multi-token keys: [head_dim], [rope.dim / 2] each; log-sum-exp [2, rows, n_heads] over the window, and over them */
ROW(float, entries, WORK_SCRATCH, entry_floats(c))
ROW(float, entry_cos, WORK_SCRATCH, entry_floats(c) ? c->rope.dim / 2 : 0)
ROW(float, entry_sin, WORK_SCRATCH, entry_floats(c) ? c->rope.dim / 2 : 0)
ROW(float, part_lse, WORK_SCRATCH, entry_floats(c) ? 2 * c->n_heads : 0)
/* indexer: [index_heads * index_dim] queries, [index_heads] head weights */
ROW(float, index_q, WORK_SCRATCH, c->index_topk ? c->index_heads * c->index_dim : 0)
ROW(float, index_weights, WORK_SCRATCH, c->index_topk && !c->index_by_group ? c->index_heads : 0)
/* selected cache rows; kept for layers that reuse the selection */
ROW(int32_t, selected_keys, WORK_CALLS, config_index_entries(c), .reads = reads_selection)
/* blocks that an indexer selected for later ones */
ROW(int32_t, candidates, WORK_CALLS, c->index_topk ? c->candidate_blocks : 0, .reads = reads_rows)
/* [n_heads * rel_dim] coefficients of biases by distance; [rel_rows, n_heads, extent] biases of the rows attended */
ROW(float, rel, WORK_SCRATCH, c->n_heads * c->rel_dim)
ROW(float, rel_bias, WORK_SCRATCH, rel_bias_floats(c), .rows = rel_rows)
/* [n_heads] sinks that are computed, negated; log-sum-exp without them */
ROW(float, sink_logits, WORK_SCRATCH, config_computes_sinks(c) ? c->n_heads : 0)
ROW(float, sink_lse, WORK_SCRATCH, config_computes_sinks(c) ? c->n_heads : 0)

/* value experts: [n_value_experts] logits of their router; [value_topk] selected ones, factors of their outputs */
ROW(float, value_router, WORK_SCRATCH, c->n_value_experts)
ROW(int32_t, value_ids, WORK_SCRATCH, c->value_topk)
ROW(float, value_weights, WORK_SCRATCH, c->value_topk)

/* Mixers, and the gates of attention */
/* gated attention: output of q_proj; DeltaNet: fused inputs, then convolution output; other mixers: inputs */
ROW(float, fused, WORK_SCRATCH, fused_floats(c))
/* mixers: [channels] input of the convolution (Mamba: output; lightning: q, k, v); short convolutions: keys, then
 * values before them */
ROW(float, mixed, WORK_SCRATCH, mixer_floats(c).mixed)
/* [v_heads * v_dim] gates; Mamba-1: steps; CCA: delayed values; mixes_kv: taps per row of keys, then of values */
ROW(float, z, WORK_SCRATCH, mixer_floats(c).z)
/* [b [v_heads], a [v_heads]]; KDA: [b [heads], f [heads * dim]] */
ROW(float, beta_alpha, WORK_SCRATCH, mixer_floats(c).gates)

/* Router and experts */
/* [n_experts + n_idle_experts] logits */
ROW(float, router, WORK_CALLS, c->n_experts ? config_n_choices(c) : 0)
/* [2, rows, router_inter] scratch */
ROW(float, router_mlp, WORK_SCRATCH, 2 * c->router_inter)
/* [topk] selected experts; factors of their outputs */
ROW(int32_t, ids, WORK_EXPERTS, c->n_experts ? c->topk : 0)
ROW(float, weights, WORK_EXPERTS, c->n_experts ? c->topk : 0)
/* weights of idle experts */
ROW(float, idle, WORK_SCRATCH, c->n_idle_experts > 0)
/* factor of the shared expert's output */
ROW(float, shared_weight, WORK_LAYER, config_weighs_shared(c))
/* [hidden] input of shared experts where it is not xn (config_has_ffn_in) */
ROW(float, ffn_in, WORK_LAYER, config_needs_ffn_in(c) ? c->hidden : 0)
/* [moe_latent] input and output of experts in a latent space */
ROW(float, routed_in, WORK_EXPERTS, c->moe_latent)
ROW(float, routed_sum, WORK_EXPERTS, c->moe_latent)
/* [expert_io_rows(), topk, moe_latent] outputs of experts, which are normed before they are summed */
ROW(float, expert_rows, WORK_ROUTED, c->expert_out_norm ? c->topk * c->moe_latent : 0, .rows = normed_rows)

/* first non-finite value: 2 * layer before its attention, + 1 before its FFN */
ROW(_Atomic int, first_bad, WORK_SCRATCH, 1, .rows = one_row)
