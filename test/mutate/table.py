"""The changes of test/mutate: name, what it breaks, the suites ("; " between them) of which each must see it, and edits (file,
old, new). `old` must stand in its file exactly once: as short as that allows, so that it survives other work there. engine/ comes
first, in one place."""

CHANGES = []


def change(name, breaks, suites, *edits):
    CHANGES.append({"name": name, "breaks": breaks, "suites": suites.split("; "), "edits": edits})


# --- engine/ ------------------------------------------------------------------------------------------------------------------

MLA, PREFILL, WEIGHTS = "engine/layer/attention_mla.c", "engine/step/prefill_cpu.c", "engine/store/weights.c"
STEP, MIRROR, BLEND, LOOP = "engine/step/step.c", "engine/step/mirror.c", "engine/step/prefill_blend.c", "engine/loop.c"
change("mla-head-groups", "every group of heads gets the keys of the first", "positions", (MLA, "h * rows, h * rows + c->qk_nope", "0, c->qk_nope"))
change("mla-group-values", "every group of heads gets the values of the first", "positions", (MLA, "h * rows + c->qk_nope, (h + 1) * rows", "c->qk_nope, rows"))
change("mla-causal-prefix", "behind a prefix a query sees one key too many", "positions", (MLA, ".ldo = heads * c->v_dim,\n                                 .q_pos0 = s->pos", ".ldo = heads * c->v_dim,\n                                 .q_pos0 = s->pos + (s->pos > 0)"))
change("mla-rope-key", "the rotary part of an absorbed query is not copied for the last head", "positions", (MLA, ".x = q + c->qk_nope,\n                                              .n = s->n,\n                                              .heads = heads", ".x = q + c->qk_nope,\n                                              .n = s->n,\n                                              .heads = heads - 1"))
change("rope-second-batch", "positions begin anew in each batch of a prompt", "positions", (PREFILL, "w->pos[i] = p->span.pos + i", "w->pos[i] = i"))
change("rope-decode", "a decoded token turns as the one before it", "positions", (STEP, "m->host.pos[m->n + i] = from->pos + i", "m->host.pos[m->n + i] = from->pos + i - 1"))
change("rope-halves", "DeepSeek's rope pairs halves instead of neighbours", "positions", ("engine/model/deepseek_v3.c", '"rope_interleave", true', '"rope_interleave", false'))
change("yarn-ramp", "YaRN scales the fast dimensions instead of the slow ones", "positions; config", ("engine/model/rope.c", "* ramp + inv_freq[j] * (1 - ramp)", "* (1 - ramp) + inv_freq[j] * ramp"))
change("yarn-scale", "YaRN's mscale enters the softmax once instead of twice", "positions; config", ("engine/model/deepseek_v3.c", "scale *= m * m", "scale *= m"))
change("scale-stride", "a ragged edge's scale is left out of the stride", "positions", (WEIGHTS, "m->block_cols >= m->cols ? 1 : cols", "m->block_cols >= m->cols ? 1 : m->cols / m->block_cols"))
change("slot-early", "a slot of the ring is given free before it was used", "positions",
       ("engine/pipe/ring.c", "int rc = gpu_pair_wait(ring_at(r, k)->off, use_of(r, k), NULL);", "int rc = 0;"),
       ("engine/pipe/ring.c", "return gpu_pair_wait((*out)->off, use_of(r, k) - 1, s);", "return 0;"))
change("slot-unready", "experts are used before they have arrived", "positions", ("engine/pipe/ring.c", "return gpu_pair_wait(ring_at(r, k)->on, use_of(r, k), s);", "return 0;"))
change("stripe-rows", "a rank's two stripes take each other's rows", "positions", ("engine/pipe/pipe.c", "int which[2] = {r->id, 2 * s - 1 - r->id}", "int which[2] = {2 * s - 1 - r->id, r->id}"))
change("kvring-step", "blocks of keys are not waited for", "positions", ("engine/pipe/kvring.c", "return step ? gpu_pair_wait(", "return 0 ? gpu_pair_wait("))
change("kvring-host-row", "through the host, keys of another row are fetched", "positions", ("engine/pipe/kvring.c", "(const char *)from[i].data + y.at : NULL, x.bytes, GPU_H2D", "(const char *)from[i].data : NULL, x.bytes, GPU_H2D"))
change("exchange-sums", "a rank adds its own partial sum in place of another's", "positions", ("engine/pipe/exchange.c", "part = x->part;", "part = rows_of(r, r->sum, r);"))
change("exchange-part", "the parts of an exchange leave a row out", "positions", ("engine/pipe/exchange.c", "(size_t)(k + 1) / EXCHANGE_PARTS - *begin", "(size_t)(k + 1) / EXCHANGE_PARTS - *begin - (*begin > 0)"))
change("pieces-lse", "merging pieces of attention forgets what they weigh", "positions", ("cpu/elem.c", "*l = top + logf(sum)", "*l = top"))
change("scan-negative-nan", "NaN codes with a sign pass", "e2e_bad_weights", ("engine/store/scan.c", "(p[i] & 0x7f) == 0x7f", "p[i] == 0x7f"))
change("scan-once", "a damaged expert is found by the first turn only", "e2e_refuse", ("engine/store/scan.c", "for (int k = 0; rc && k <", "for (int k = 0; !rc && 0 && k <"))
change("scan-experts", "routed experts are not looked at", "e2e_bad_weights", ("engine/store/scan.c", "rc = add(s, &b, layer, MODULE_EXPERT, &s->w->layers[layer].experts[ids[i]], e);", ";"))
change("tensor-hole", "holes between tensors are accepted", "e2e_bad_weights", ("engine/store/safetensors.c", "if (spans[i].begin != at)", "if (spans[i].begin < at)"))
change("tensor-end", "a tensor may end behind its file", "e2e_bad_weights", ("engine/store/safetensors.c", "if ((uint64_t)end > room)", "if (0)"))
change("tensor-size", "a tensor's bytes need not be those of its shape", "e2e_bad_weights", ("engine/store/safetensors.c", "if (t.size != dtype_bytes(t.dtype, count))", "if (0)"))
change("index-dotdot", "a shard may lie outside its directory", "e2e_bad_weights", ("engine/store/safetensors.c", "memchr(v->string, '/', v->n) ||", ""), ("engine/store/safetensors.c", " || v->string[0] == '.'", ""))
change("config-unknown-key", "keys that change the computation are ignored", "e2e_refuse; config", ("engine/model/config.c", "if (!r.rc) refuse_unknown(&r, r.root, r.seen, c, force);", ""))
change("family-unknown", "an unknown family is taken for another", "e2e_refuse; config", ("engine/model/arch.c", "return NULL;", "return table[0];"))
change("force-context", "--force does not reach the context's limit", "e2e_refuse", ("engine/engine.c", "p->context > c->max_context && !p->force", "p->context > c->max_context"))
change("force-memory", "--force does not reach the memory check", "e2e_refuse", ("engine/engine.c", "need > have && !p->force", "need > have"))
change("memory-unchecked", "a KV cache larger than memory is not refused", "e2e_refuse", ("engine/engine.c", "if (have && need > have &&", "if (0 &&"))
change("exit-5", "too little memory exits 1", "e2e_refuse", ("engine/base/error.c", "case ERR_MEMORY: return 5;", "case ERR_MEMORY: return 1;"))
change("sync-directory", "the directory is not synced after a rename", "e2e_commands", ("engine/base/file.c", "sync_fd(dir);", ""))
change("sync-file", "a file is renamed without having been synced", "e2e_commands; e2e_store", ("engine/base/file.c", "if (keep && on_disk && sync_fd(o->fd)) err = errno;", ""))
change("sample-top-p", "top-p is without effect", "sample", ("engine/sample.c", "s->top_p > 0 && s->top_p < 1", "0"))
change("sample-min-p", "min-p is without effect", "sample", ("engine/sample.c", "s->min_p > 0 ? at_least(&p, s->min_p) : sum", "sum"))
change("sample-penalty", "the repeat penalty raises negative logits", "sample", ("engine/sample.c", "logits[id] * penalty", "logits[id] / penalty"))
change("sample-position", "each position draws the same number", "sample", ("engine/sample.c", "uniform(s->seed, position)", "uniform(s->seed, 0)"))
change("prefix-too-long", "of a changed prompt one token too many is kept", "engine", ("engine/session.c", "s->n_kv = keep;", "s->n_kv = keep + (keep < r->n - 1);"))

change("step-join", "a device leaves out what the processor's experts add", "reference mla_plain", (STEP, "TRY(exec_of(d)->ops->add(exec_of(d), &(struct op_add){.y = w->x, .x = w->xn, .n = m->n_dev, .m = s->c->hidden}));", ""))
change("step-join-early", "a device does not wait for the processor's experts", "reference mla_plain", (STEP, "TRY(gpu_number_wait(m->answered, ++m->n_wanted, d->main));", "++m->n_wanted;"))
change("step-rewind", "a device keeps rows of a prefix that changed", "reference mla_plain", (MIRROR, "    if (m->rows > pos) m->rows = pos;\n    for (int i = 0; i < MIRROR_STATES; i++)\n        if (m->state[i] > pos || !pos) m->state[i] = -1;\n", ""))
change("step-mirror-rows", "the last row that a prefill left is not sent to the device", "reference mla_plain", (MIRROR, "rows_of(host, m->rows, pos - m->rows)", "rows_of(host, m->rows, pos - m->rows - 1)"))
change("step-rows-store", "what a step on a device adds to a cache stays there", "reference mla_plain", (STEP, "step_rows_store(s, m, spans, n);", ""))
change("step-row0", "rows of the second micro-batch lie over those of the first", "reference mla_plain", (STEP, "s->micro[i].row0 = n, n += s->micro[i].n", "s->micro[i].row0 = 0, n += s->micro[i].n"))
change("step-experts-micro", "the processor takes the first micro-batch's rows for those of both", "reference mla_plain", (STEP, "struct work *w = &m->host, rest = from_row", "struct work *w = &s->micro[0].host, rest = from_row"))
change("step-head-order", "the head takes the rows of devices and of the processor for each other's", "reference mla_plain", (STEP, "int k = part ? m->n - n_dev : n_dev;", "int k = part ? n_dev : m->n - n_dev;"))
change("policy-need", "what a prompt takes of each device is not asked", "policy", ("engine/sched/policy.c", "short_of += m->free[i] < in->need[mode];", "short_of += 0 && m->free[i] < in->need[mode];"))
change("policy-blend-need", "a blended prompt is chosen where it has no room", "policy", ("engine/sched/policy.c", "m->free[0] < in->need[mode]) return", "0) return"))
change("policy-holds", "a prompt goes to the device that steps read from", "policy", ("engine/sched/policy.c", ": m->holds[best]))", ": m->holds[i]))"))
change("split-floor", "auto stops at plans that others beat", "split", ("engine/sched/split.c", "floor_of(in, p) * 1.005", "floor_of(in, p) * 1.5"))
change("step-yield", "what steps read makes no room for a prompt", "crowd", (LOOP, "step_yield(e->machine.step)) {", "!e && step_yield(e->machine.step)) {"))
change("step-head-mixed", "behind rows of a device the head takes others of the processor's", "crowd", (STEP, "s->head.x + (size_t)(row + n_dev) *", "s->head.x + (size_t)row *"))
change("step-rest-row", "rows of the processor beside those of a device take the first ones' place", "crowd", (STEP, "struct work w = from_row(s->c, &m->host, first);", "struct work w = from_row(s->c, &m->host, 0);"))
change("blend-twice", "the processor computes a device's experts again", "reference mla_plain", (BLEND, "b->mine[i] = *to < 0 ? b->ids[i] : -1;", "b->mine[i] = b->ids[i];"))
change("blend-weights", "a pair gets the weight of the one before it", "reference mla_plain", (BLEND, "b->pair_weight[(*to)++] = b->weights[i];", "b->pair_weight[(*to)++] = b->weights[i ? i - 1 : 0];"))
change("stage-held", "weights that are not pinned go straight from where they lie", "weights that are not pinned", ("engine/pipe/stage.c", "return s->n_fillers && r->bytes > small", "return 0 && r->bytes > small"))
change("split-join", "the processor has a part though devices alone are done sooner", "split", ("engine/sched/split.c", "alone < end + in->join)", "alone < end)"))
change("blend-slot-early", "a slot is filled before its last use is over", "reference mla_plain", (BLEND, ".after = t->off,", ".after = 0,"))
change("blend-slot-unready", "experts are used before they have arrived", "reference mla_plain", (BLEND, "TRY(gpu_number_wait(b->loaded, on, b->d->main));", ""))
change("state-rewind", "a state of tokens that were taken back is gone on from", "state", ("engine/layer/kv.c", "if (kv->state[i].at > pos) kv->state[i].at = -1,", "if (kv->state[i].at > pos + 4096) kv->state[i].at = -1,"))
change("state-mark", "the state at a mark is that of the end", "state", ("engine/layer/attention_delta.c", "from = v->marked;", "from = v->from;"))
change("state-ring", "a rank goes on from the state before the prompt", "reference delta_fused", ("engine/pipe/kvring.c", "if (!q || q == r) return 0;", "if (q || q == r) return 0;"))
change("delta-decay", "the delta rule forgets nothing", "kcheck_delta", ("cpu/delta.c", "r.decay = expf(", "r.decay = 1 + 0 * expf("))
change("conv-keep", "the convolution keeps the first rows in place of the last", "kcheck_delta", ("cpu/delta.c", "row_at(&j, o->n - o->taps + 1 + i)", "row_at(&j, 1 - o->taps + i)"))
change("blend-cache", "the cache in host memory lacks what a blended prefill read", "reference mla_plain", (BLEND, "step_mirror_store(s, j->kv, &b->move, j->pos + b->at, b->n, b->kv);", ""))
change("resident-order", "layers are weighed from the last one on", "resident", ("engine/step/resident.c", "used += in->layer[l++];", "used += in->layer[in->n_layers - 1 - l++];"))
change("split-queue", "of the experts that move only the last is in a queue", "split", ("engine/sched/split.c", "p->queue[come[d]++] = p->move", "p->queue[come[d]] = p->move"))
change("loop-apart", "what is wrong with one session ends the turns of all in the step", "e2e_faults", (LOOP, "rc && rc != ERR_CANCELLED && n > 1", "0"))
change("loop-fallback", "a device that fails in a prefill ends the turn", "e2e_faults", (LOOP, "(rc == ERR_MEMORY || rc == ERR_RUNTIME) && e->mode", "rc == ERR_MEMORY && e->mode"))
change("turn-prefill", "a cancelled prefill waits for the step that runs", "turns", ("engine/session.c", "return s->engine->stepping && !s->request.logits;", "return false;"))
change("turn-queued", "a cancelled turn waits in the queue", "turns", ("engine/session.c", "case SESSION_QUEUED: return true;", "case SESSION_QUEUED: return false;"))

# --- gpu/ ---------------------------------------------------------------------------------------------------------------------

change("number-wait", "a stream waits for a number for a millisecond at most", "numbers, emu 2", ("gpu/emu_number.c", "while (!lost && !gpu_number_reached(&n->base, value)) lost", "if (!lost && !gpu_number_reached(&n->base, value)) lost"))
change("number-await", "the host does not wait for a number", "numbers, emu 2", ("gpu/number.c", "bool reached = gpu_number_reached(n, value);", "bool reached = true;"))

# --- cpu/ ---------------------------------------------------------------------------------------------------------------------

change("experts-one-level", "experts weigh 1 % more at one level", "positions; kcheck_ops", ("cpu/experts.c", "g->weights[t], tile", "g->weights[t] * (w->x->level == CPU_AVX2 ? 1.01f : 1), tile"))
change("attention-causal", "a query sees the key after it", "positions; kcheck_ops", ("cpu/attention.c", "op_seen(p, o->k_pos0", "op_seen(p + 1, o->k_pos0"))
change("attention-window", "a window is one key too wide", "kcheck_ops", ("cpu/attention.c", "+ 1 - o->window : 0", "- o->window : 0"))
change("select-positive", "the indexer counts what its heads are against", "kcheck_ops", ("cpu/select.c", "(s < 0 ? 0 : s)", "s"))
change("select-ties", "of equal keys the indexer takes one too many of those above", "kcheck_ops", ("cpu/select.c", "&& ties-- > 0", "&& ties-- > 1"))
change("router-group", "groups are ranked by their best expert alone", "positions; kcheck_ops", ("cpu/route.c", "size > 1 ? first + second : first", "size > 1 ? first : first"))
change("router-bias", "the correction bias enters the weights", "positions; kcheck_ops", ("cpu/route.c", ": score[i];\n        mark[i] = 1;", ": score[i] + (o->bias ? o->bias[i] : 0);\n        mark[i] = 1;"))
change("router-scale", "the routed scaling factor is lost", "positions; kcheck_ops", ("cpu/route.c", ": weights[k]) * o->scale", ": weights[k])"))
change("kv-fp8-scale", "an FP8 cache reads the scale of the head before", "kcheck_ops", ("cpu/elem.c", "*= p->scale[row * (size_t)p->heads + (size_t)h]", "*= p->scale[row * (size_t)p->heads + (size_t)(h ? h - 1 : 0)]"))
change("gemv-tail", "the last columns of a row are weighed by the block before", "kcheck_kernels; positions", ("cpu/gemv_inner.h", "int end = c + PART < edge ? c + PART : edge;", "int end = c + PART;"))
change("scalar-softmax", "the running sum of a softmax is not corrected", "kcheck_kernels; positions", ("cpu/scalar.c", "*sum = *sum * corr + total", "*sum = *sum + total"))

change("company-linear", "nine rows and more take the way of many", "kcheck_company", ("cpu/linear.c", "!o->exact && o->n > OP_FEW", "!o->exact && o->n > 8"))
change("company-experts", "experts of nine tokens and more take the way of many", "kcheck_company", ("cpu/experts.c", "return batch > OP_FEW && g->n > KERNEL_TOKENS", "return batch > 8 && g->n > KERNEL_TOKENS"))
change("company-attention", "queries of nine tokens and more share their chunks", "kcheck_company", ("cpu/attention.c", "if (o->n > OP_FEW) return run", "if (o->n > 8) return run"))

# --- tokenizer/ ---------------------------------------------------------------------------------------------------------------

change("special-injection", "control tokens in a user's text count", "tokenizer", ("tokenizer/added.c", "if (!trie->n || (!text.origin && origin != TEXT_TEMPLATE)) return 0;", "if (!trie->n) return 0;"))
change("merge-order", "a short word is merged from the right", "merges", ("tokenizer/bpe.c", "if (rank[i] < rank[best]) best = i;", "if (rank[i] <= rank[best]) best = i;"))
change("merge-long", "a long word forgets pairs made by merging", "merges", ("tokenizer/bpe.c", "for (int side = 0; side < 2; side++) {", "for (int side = 0; side < 1; side++) {"))
change("template-tools", "the template for tools is not taken", "chat", ("tokenizer/chat.c", "c->tools ? c->tools : c->usual", "c->tools ? c->usual : c->usual"))
change("thinking-open", "thinking that the prompt has opened is shown as the answer", "parts", ("tokenizer/parts.c", "p->inside = i;\n        p->part = PART_THINKING;", "p->inside = i;"))

# --- cli/ ---------------------------------------------------------------------------------------------------------------------

APP, BATCH, SIG = "cli/app.c", "cli/batch.c", "cli/sig.c"
for option in ("TEMP", "TOP_P", "TOP_K", "MIN_P", "REPEAT_PENALTY", "SEED"):
    change("option-" + option.lower().replace("_", "-"), "the option does not reach the engine", "e2e_reach", (APP, f"if (v[OPT_{option}].text)", "if (0)"))
change("option-system", "-s is without effect in one-shot", "e2e_reach", ("cli/oneshot.c", "v[OPT_SYSTEM].text && conv_system", "0 && conv_system"))
change("option-raw", "--raw goes through the template", "e2e_reach", (APP, "if (a->opts.v[OPT_RAW].on) return 0;", ""), ("cli/oneshot.c", "if (v[OPT_RAW].on) rc", "if (0) rc"))
change("option-force", "--force does not leave the command line", "e2e_refuse", (APP, ".force = v[OPT_FORCE].on", ".force = false"))
change("batch-seed", "a line's seed is ignored", "e2e_reach", (BATCH, "if (seed >= 0) q.sampling.seed", "if (0) q.sampling.seed"))
change("batch-temperature", "a line's temperature is ignored", "e2e_reach", (BATCH, "q.sampling.temperature = (float)temp;", ""))
change("clicolor-force", "CLICOLOR_FORCE is without effect", "e2e_reach", ("cli/cli.c", "if (force && *force &&", "if (0 &&"))
change("second-interrupt", "a second Ctrl-C waits like the first", "e2e_reach; e2e_commands", (SIG, "(sig == SIGINT ? interrupted : terminated)", "0"))
change("terminal-restore", "a signal leaves the terminal raw", "e2e_repl; e2e_commands", (SIG, "term_restore();\n    saver_finish();\n    file_out_abandon();\n    signal(sig, SIG_DFL);\n    sigemptyset", "file_out_abandon();\n    signal(sig, SIG_DFL);\n    sigemptyset"))
change("command-load", "/load opens a chat without its messages", "e2e_commands", ("cli/command_session.c", "arg, STORE_LOAD, &t->conv", "arg, STORE_REPLACE, &t->conv"))
change("command-system", "/system forgets its text", "e2e_commands", ("cli/command_talk.c", 'strcmp(arg, "-") ? arg : ""', '""'))
change("command-compact", "/compact drops the summary", "e2e_commands", ("cli/compact.c", "buf_add(&text, summary->data, summary->len);", ""))
change("compact-rest", "/compact drops what did not fit into the summary", "e2e_commands", ("cli/compact.c", ".n = t->conv.n - t->summarised", ".n = 0"))
change("command-bg", "/bg answers in the foreground", "e2e_commands", ("cli/command_talk.c", "repl_send(r, arg, strlen(arg), true)", "repl_send(r, arg, strlen(arg), false)"))
change("filter-c1", "8-bit control sequences reach the terminal", "filter; e2e_oneshot", ("cli/render.c", "return c1 || bidi;", "return bidi;"))
change("store-checksum", "a damaged chat is opened", "e2e_store", ("cli/store.c", "if (memcmp(want, data, head_size))", "if (0)"))
change("store-lock", "two programs write one chat", "e2e_store", ("cli/store.c", "if (flock(fd, LOCK_EX | LOCK_NB))", "if (0)"))
change("save-blocks", "the terminal waits for the disk", "e2e_slow_disk", ("cli/talk.c", "rc = store_save_later(", "rc = store_save("))
change("save-close", "a chat is closed before it is saved", "e2e_slow_disk", ("cli/store.c", "if (s->lock) saver_wait();", ""))
change("save-said", "a chat is called saved before it is", "e2e_slow_disk", ("cli/command_session.c", "saver_wait();", ""))
change("save-unsaid", "what cannot be saved is not said", "e2e_repl", ("cli/repl.c", "    repl_pump(r);\n    repl_say_unsaved(r);", "    repl_pump(r);"))
change("token-without-text", "an id without a text ends an answer in silence", "e2e_faults", ("cli/turn.c", "t->lost = rc == ERR_MEMORY ? rc : ERR_MODEL;", "t->lost = rc == ERR_MEMORY ? rc : 0;"))
change("stop-split", "a stop string over two tokens is shown", "e2e_oneshot", ("cli/turn.c", "k)) hold = k;", "k)) hold = 0;"))
change("line-kill", "Ctrl-U erases from the start of the text", "line", ("cli/line.c", "erase(l, row_begin(l), l->cursor, true)", "erase(l, 0, l->cursor, true)"))
change("line-row-end", "Ctrl-E goes to the end of the text", "line", ("cli/line.c", "l->cursor = row_end(l); }", "l->cursor = l->text.len; }"))
change("line-yank", "Ctrl-Y brings back one byte too few", "line", ("cli/line.c", "l->killed.data : \"\", l->killed.len)", "l->killed.data : \"\", l->killed.len ? l->killed.len - 1 : 0)"))
change("style-wrap", "words are torn at the end of a row", "style", ("cli/style.c", "if (broken && s->col && s->col + s->blanks + s->width > room(s)) {", "if (0) {"))
change("style-link", "links are broken", "style", ("cli/style.c", "s->link = !s->whole_rows;", "s->link = false;"))
change("style-table", "a table that is too wide is lined up", "style; e2e_screen", ("cli/style_table.c", "fits = fits && (!room || total <= room);", ""))
change("no-save", "--no-save keeps chats", "e2e_screen", ("cli/talk.c", "if (r->app->opts.v[OPT_NO_SAVE].on || !conv_last", "if (!conv_last"))
change("clear-undo", "/undo does not bring back what /clear put aside", "e2e_screen", ("cli/talk.c", "if (!t->past.conv.n) return false;", "return false;"))
change("binary-document", "a program is attached as a document", "e2e_oneshot", ("cli/input.c", "if (!rc) rc = check_document(path, &raw, e);", ""))
change("batch-line", "--batch counts lines from where a prompt begins", "e2e_oneshot", ("cli/batch.c", ".number = number}", ".number = 1}"))
change("bench-sessions", "--bench counts one session's tokens for all", "e2e_bench", ("cli/bench.c", "rate, sessions / rate,", "rate, 1 / rate,"))
