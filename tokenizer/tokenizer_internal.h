#pragma once
/* Shared by the tokenizer's own source files. Nothing else includes it. */
#include <pthread.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "tokenizer/merges.h"
#include "tokenizer/norm_steps.h"
#include "tokenizer/pattern.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unigram_model.h"

/* --- vocab.c: tokens and ids ------------------------------------------------------------------ */

/* TOKEN_LITERAL: a token of a byte-level vocabulary that contains a character outside the byte alphabet, so encoding
 * never produces it. */
enum {
    TOKEN_DEFINED = 1,
    TOKEN_LITERAL = 2,
    TOKEN_ADDED = 4,
    TOKEN_SPECIAL = 8,
    TOKEN_HAS_FIRST_FORM = 16 /* see decoder_set_bytes */
};
struct vocab_token {
    uint32_t pool_offset, n, flags; /* offset and n: the decoded bytes of the token in the pool */
};
struct vocab {
    char *pool;
    size_t used, cap;
    struct vocab_token *tokens; /* [n_ids] */
    uint32_t n_ids, cap_ids;
    struct vocab_slot *slots; /* hash table of the tokens that text may become */
    uint32_t mask;
};
enum { VOCAB_MAX_IDS = 1 << 22 }; /* a file with larger ids is damaged: the array of tokens would fill the memory */
/* n_pieces: at least the number of calls of vocab_add to come (the hash table does not grow). n_bytes: first size of
 * the pool, which grows. */
int vocab_init(struct vocab *v, size_t n_pieces, size_t n_bytes);
void vocab_free(struct vocab *v);
enum { VOCAB_DUPLICATE_ID = 1, VOCAB_DUPLICATE_TOKEN };
/* Adds a token that text may become. hash: vocab_hash of s. Returns 0, ERR_MEMORY or VOCAB_DUPLICATE_*. */
int vocab_add(struct vocab *v, uint32_t id, uint64_t hash, const char *s, size_t n, bool literal);
/* Sets the decoded bytes of an id, which may be new. flags: TOKEN_*. s must not lie in the pool. 0 or ERR_MEMORY. */
int vocab_set_bytes(struct vocab *v, uint32_t id, const char *s, size_t n, uint32_t flags);
int64_t vocab_find(const struct vocab *v, const char *s, size_t n, bool literal); /* id or -1 */
uint64_t vocab_hash(const char *s, size_t n);
void vocab_prefetch(const struct vocab *v, uint64_t hash);
int64_t vocab_find_hashed(const struct vocab *v, uint64_t hash, const char *s, size_t n, bool literal);
/* Memory for a hash table. size: the same in both calls; zeroed; NULL without memory. */
void *vocab_table_alloc(size_t size);
void vocab_table_free(void *p, size_t size);

/* Byte-level vocabularies write byte b as a character. Returns the number of bytes, or -1 if some character is not one
 * of these. out has room for n. */
long vocab_bytes_of_chars(const char *s, size_t n, char *out);
size_t vocab_char_of_byte(unsigned char b, char out[4]);

/* --- bpe.c ------------------------------------------------------------------------------------ */

struct bpe {
    struct merges merges;
    bool ranks_by_bytes; /* tiktoken: the rank of a pair is the id of the concatenated bytes */
    bool is_byte_level;  /* input is bytes, not the characters of a byte-level vocabulary */
    bool ignore_merges, byte_fallback, fuse_unk;
    int64_t unk;           /* id or -1 */
    char *prefix, *suffix; /* of continuing tokens; of a word's last token; or NULL */
    int32_t byte_id[256];  /* with is_byte_level: initial id of byte b; -1: not in the vocabulary */
    int32_t fallback[256]; /* ids of <0xNN>, or -1 */
    /* no merge joins text with a following word mark (U+2581), so words can be encoded separately */
    bool split_at_marks;
};
struct encoder;
/* Encodes one word (a Unigram model's as unigram_encode), or with split_at_marks a text without pre-tokenizer, and
 * appends its ids to out. s: valid UTF-8. */
int bpe_encode(struct encoder *x, const char *s, size_t n, struct ids *out, struct error *e);

/* --- pretok.c --------------------------------------------------------------------------------- */

enum pre_kind { PRE_SPLIT, PRE_SPACE_BEFORE, PRE_METASPACE, PRE_BYTES };
enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};
struct pre_step {
    uint8_t kind, behavior;
    bool invert;
    bool mark_always, mark_first; /* metaspace: prepend a mark to every word, to the first word of the text */
    char mark[4];
    uint8_t n_mark;
    struct pattern pattern;
};
struct pretok {
    struct pre_step *steps;
    size_t n, cap;
    struct alphabet alphabet;
    bool is_byte_level; /* has a ByteLevel step */
};
/* j: pre_tokenizer of tokenizer.json; NULL or null: no steps */
int pretok_load(struct pretok *p, const struct json *j, struct error *e);
/* a single Split */
int pretok_add_pattern(struct pretok *p, const char *pattern, size_t n, enum split_behavior b, struct error *e);
/* once, after all steps were added */
int pretok_compile(struct pretok *p, struct error *e);
void pretok_free(struct pretok *p);
struct word_ranges {
    struct word_range {
        size_t begin, end;  /* in characters */
        bool at_text_start; /* starts at the beginning of the whole text */
    } * v;
    size_t n, cap;
};
/* Splits s into words and passes them to bpe_encode. first: s starts at the beginning of the whole text. */
int pretok_encode(struct encoder *x, const char *s, size_t n, bool first, struct ids *out, struct error *e);

/* --- added_tokens.c --------------------------------------------------------------------------- */

struct added_token {
    char *content; /* as written in the text; the trie may hold the normalized form */
    size_t n;
    int32_t id;
    bool special, normalized, is_single_word, lstrip, rstrip;
    bool is_piece;   /* of tokenizer.model: matched in normalized text, in which marks stand for spaces */
    bool is_control; /* special, or a mark of chats: only template text becomes it (added_tokens_append) */
};
struct trie {
    struct trie_node {
        uint32_t child, sibling; /* 0: none */
        int32_t token;           /* index into tokenizer.added, or -1 */
        uint8_t byte;
    } * nodes;
    size_t n, cap;
    bool has_plain; /* a token that is not control */
    uint32_t root[256];
};
struct added_match {
    size_t begin, end;
    int32_t id;
};
struct added_matches {
    struct added_match *v;
    size_t n, cap;
};
int added_trie_add(struct trie *t, const char *s, size_t n, int32_t token); /* a duplicate is ignored */
void added_trie_free(struct trie *t);
/* Finds leftmost-longest tokens, in order: control tokens whose bytes all come from the template, and others. origin:
 * of all bytes if text.origin is NULL. Replaces the contents of out. */
int added_tokens_find(const struct tokenizer *t, const struct trie *trie, struct norm_text text, uint8_t origin,
                      struct added_matches *out, struct error *e);

/* --- decoder.c -------------------------------------------------------------------------------- */

struct token_decoding {
    bool join_with_space; /* no decoder: join tokens with a space */
    bool unmark_first;    /* Metaspace: remove the marks of the first token */
    char *strip_start;    /* removed from the start of the text, up to n_strip times */
    size_t n_strip;
    struct dec_step {
        enum dec_kind { DEC_BYTES, DEC_FALLBACK, DEC_STRIP, DEC_REPLACE, DEC_METASPACE } kind;
        char *from, *to; /* metaspace: from is the mark; strip: the removed text */
        size_t start, stop;
    } * steps; /* applied to each token */
    size_t n, cap;
    bool is_fused; /* while loading: later steps would see the whole text */
};
/* j: decoder of tokenizer.json; NULL or null: none */
int decoder_load(struct token_decoding *d, const struct json *j, struct error *e);
/* sets the decoded bytes of every id */
int decoder_set_bytes(struct tokenizer *t, struct error *e);
void decoder_free_steps(struct token_decoding *d);

/* --- tokenizer -------------------------------------------------------------------------------- */

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    struct unigram unigram; /* with scores: instead of merges */
    struct normalizer normalizer;
    struct pretok pretok;
    struct added_token *added;
    size_t n_added, cap_added;
    /* added tokens: all; those matched before normalization; those matched after it */
    struct trie added_trie, raw_trie, normalized_trie;
    struct token_decoding decoding;
    int32_t bos, eos; /* -1: none */
    /* limits in characters of a text and of a run with or without white space; longer ones are split first (0: never)
     */
    size_t max_chars, max_run;
    pthread_mutex_t *lock; /* guards idle */
    struct encoder **idle;
};

struct cached_word; /* bpe.c */
/* State of one encoding call. Pooled, so that its word cache stays warm. */
struct encoder {
    const struct tokenizer *t;
    struct encoder *next;
    struct cached_word *cache;
    struct pattern_matcher matcher;
    struct norm_text_buf norm[2];
    struct buf text, char_map, clean, origin;
    struct word_ranges ranges[2];
    struct added_matches added_matches[2];
    struct buf rewritten;
    void *symbols, *heap;
    size_t cap_symbols, cap_heap;
};
/* Takes an idle encoder or makes one. Any thread; the encoder belongs to the caller until encoder_release. */
int encoder_acquire(const struct tokenizer *t, struct encoder **x, struct error *e);
void encoder_release(struct encoder *x);
void encoder_free(struct encoder *x);

/* --- loading ---------------------------------------------------------------------------------- */

/* ERR_MODEL: "unknown WHAT NAME". name: NULL or any type. */
int load_fail_unknown(const char *what, const struct json *name, struct error *e);
/* config: tokenizer_config.json, which may add tokens */
int load_json(struct tokenizer *t, const char *path, const struct json *config, struct error *e);
/* root: contents of a tokenizer.json */
int load_json_tree(struct tokenizer *t, const struct json *root, size_t file_size, struct error *e);
/* Member that only trees of GGUF files have. Of the root: the ids of tokens that other ids have, too, by their text. Of
 * an added token: another id may have its text. */
#define LOAD_REPEATS "hearth:repeats"
/* True in an added token: added_token.is_piece. */
#define LOAD_PIECE "hearth:piece"
/* Member of an added token that only tokenizer_config.json has: it is left out where its text has no id. */
#define LOAD_SUPPLEMENT "hearth:supplement"
/* Adds the tokens of tokenizer_config.json to added_tokens of a tokenizer.json. ERR_MODEL, ERR_MEMORY. */
int load_config_added(struct arena *arena, struct json *root, const struct json *config, struct error *e);
/* Reads the id, below n_ids, of a member of added_tokens_decoder: key[0], whose value follows. ERR_MODEL: no token. */
int load_config_token(const struct json *key, uint32_t n_ids, int64_t *id, struct error *e);
int load_gguf(struct tokenizer *t, const char *file, struct error *e);
/* meta: the tokenizer's members of a GGUF file of `size` bytes; SentencePiece's tokenizer.model becomes such */
int load_gguf_meta(struct tokenizer *t, const struct json *meta, struct arena *arena, size_t size, struct error *e);
int load_sentencepiece(struct tokenizer *t, const char *path, const struct json *config, struct error *e);
/* Builds the merges of a vocabulary whose tokens have scores [id] and types [id]. */
int load_scores(struct tokenizer *t, const struct json *vocab, const struct json *scores, const struct json *types,
                struct error *e);
bool load_has_inner_mark(const char *s, size_t n); /* a word mark (U+2581) after another character */
int load_tiktoken(struct tokenizer *t, const char *path, const struct json *config, struct error *e);
int load_tiktoken_tekken(struct tokenizer *t, const char *path, struct error *e); /* Mistral's tekken.json */
/* Reads bos_token and add_bos_token of tokenizer_config.json. */
int load_bos(struct tokenizer *t, const struct json *config, struct error *e);
/* Reads eos_token of tokenizer_config.json. A token outside the vocabulary ends nothing. */
void load_eos(struct tokenizer *t, const struct json *config);
/* takes ownership of content, also on failure */
int added_tokens_append(struct tokenizer *t, struct added_token a, struct error *e);
int added_tokens_index(struct tokenizer *t, struct error *e); /* builds the tries after all tokens were added */
/* find a token as spelled in the file, and an added token by its content: id or -1 */
int64_t load_find_token(const struct tokenizer *t, const char *s, size_t n);
int32_t added_tokens_id(const struct tokenizer *t, const char *s, size_t n);
bool added_tokens_is_control(const struct tokenizer *t, const char *s, size_t n); /* only template text becomes it */
/* Decodes a token as spelled in the file: to its bytes if the vocabulary is byte-level (otherwise sets *literal).
 * Returns the length. */
size_t load_decode_spelling(const struct tokenizer *t, const char *s, size_t n, char *out, bool *literal);
