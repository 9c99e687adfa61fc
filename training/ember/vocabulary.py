"""ember's tokenizer and chat template: training them, writing them, and rendering a conversation to ids."""

import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BEGIN, END, USER, ASSISTANT, SYSTEM, PAD = SPECIAL = (
    "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|pad|>",
)
BEGIN_ID, END_ID, USER_ID, ASSISTANT_ID, SYSTEM_ID, PAD_ID = range(len(SPECIAL))
ROLE_ID = {"system": SYSTEM_ID, "user": USER_ID, "assistant": ASSISTANT_ID}
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}<|system|>{{ message['content'] }}<|end|>"
    "{% elif message['role'] == 'user' %}<|user|>{{ message['content'] }}<|end|>"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train(texts, size):
    """A byte-level BPE tokenizer whose first ids are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load(directory):
    return Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))


def write(directory, tokenizer, context):
    tokenizer.save(os.path.join(directory, "tokenizer.json"))
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings = {
        "added_tokens_decoder": {str(i): {"content": t, **plain, "special": True} for i, t in enumerate(SPECIAL)},
        "bos_token": BEGIN,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": context,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(settings, f, indent=2)
        f.write("\n")


def text_ids(tokenizer, text):
    """Text without control tokens: what a user types never becomes one."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def render(turns, encode, answer=False):
    """Ids of a conversation [(role, text)], as the chat template gives them; `answer` opens the assistant's turn.

    The second list marks them: 1 for the tokens of an answer and its end, 0 for the rest.
    """
    ids, marks = [BEGIN_ID], [0]
    for role, text in turns:
        body = encode(text)
        ids += [ROLE_ID[role], *body, END_ID]
        marks += [0, *([int(role == "assistant")] * (len(body) + 1))]
    if answer:
        ids.append(ASSISTANT_ID)
        marks.append(0)
    return ids, marks
