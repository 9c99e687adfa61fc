#pragma once
/* The options of sampling, and the log probabilities that it can report. */
#include <stdint.h>

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
