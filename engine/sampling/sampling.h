#pragma once
/* The options of sampling, and the log probabilities that it can report. */
#include <stddef.h>
#include <stdint.h>

/* DRY (p-e-w, text-generation-webui pull request 5677; as llama.cpp computes it): penalizes the token that would make
 * the end of the text a longer repetition of earlier text. */
enum { DRY_BREAKER_BYTES = 256 };
struct dry {
    float multiplier;   /* 0: off */
    float base;         /* a match of n tokens costs multiplier * base^(n - allowed_length) */
    int allowed_length; /* tokens; shorter matches cost nothing */
    int last_n;         /* tokens searched, the prompt's included; < 0: all */
    /* Texts that no match reaches across: each with its NUL, an empty one behind the last. */
    char breakers[DRY_BREAKER_BYTES];
};
/* The bytes of a token, for the breakers. NULL: it has none. */
struct token_texts {
    const char *(*text)(const void *ctx, int32_t id, size_t *n);
    const void *ctx; /* must outlive the turn */
};

struct sample_item {
    float logit;
    int32_t id;
};
struct logit_bias {
    int32_t id;
    float bias;
};
struct sampling {
    float temperature;                  /* 0: greedy */
    float top_p, min_p, repeat_penalty; /* 1, 0, 1: off */
    /* subtracted from the logit of a token of the answer, once and per occurrence; 0: off */
    float presence_penalty, frequency_penalty;
    int top_k; /* 0: off */
    /* keeps logits within so many standard deviations of the largest; 0: off */
    float top_n_sigma;
    struct dry dry;
    struct token_texts texts; /* text NULL: breakers have no effect */
    uint64_t seed;
    const struct logit_bias *bias; /* [n_bias], added to logits; must outlive the turn */
    int n_bias;
    int answer_from; /* position of the answer's first token; the engine sets it at submission */
};

/* Natural logarithms of probabilities: softmax of the model's logits, before sampling options, bias and filter. */
enum { MAX_TOP_LOGPROBS = 20 };
struct token_logprobs {
    float logprob; /* the token's; -infinity: it is impossible */
    int n_top;
    struct top_logprob {
        int32_t id;
        float logprob;
    } top[MAX_TOP_LOGPROBS]; /* the likeliest tokens, in descending order */
};
