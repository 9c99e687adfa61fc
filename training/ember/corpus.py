"""The text that ember learns from: reading the corpus files, and the grammar that varies their wordings.

The files under corpus/ are written by hand. A person does not type exactly what stands there, so each training
question is put into a frame ("how do I ...", "what is ..."), and now and then gets synonyms, a greeting, a typing
error or a lost word. Everything is drawn from one seeded generator: the same seed gives the same text.
"""

import itertools
import os
import random
import re

from phrases import (
    ABOUT_FRAMES, CASUAL_OF, CASUAL_PATTERN, CIRCUMSTANCES, DOCUMENT_REQUESTS, DROPPABLE, ENDINGS, FILLERS,
    LEAD_INS, PREFIXES, STORIES, SUFFIXES, SYLLABLES, SYNONYM_OF, SYNONYM_PATTERN, SYSTEM_TEXTS, TAILS,
    TO_FRAMES, WHAT, WHEN, WHERE, WHO, entries,
)

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "corpus")
MODEL = os.path.join(HERE, "..", "..", "engine", "ember", "model")  # as published, and compiled into the program
TOPIC_FILES = ("topics-start.txt", "topics-options.txt", "topics-repl.txt", "topics-engine.txt")
OUT_OF_SCOPE = "out-of-scope"
SMALL_TALK = {"hello", "how-are-you", "thanks", "goodbye"}  # never put into a frame or behind a prefix


class Topic:
    """One canonical answer and the hand-written wordings that ask for it."""

    def __init__(self, name):
        self.name, self.answer = name, ""
        self.program, self.document = "", ""  # what the program answers by itself, to a question and to a text
        self.facts, self.to, self.about, self.ask = [], [], [], []
        self.after = {}  # name of the topic that was answered before -> wordings that ask for this one only then
        self.shares = None  # how often each of plain() is drawn; None: all alike

    def plain(self):
        """Its wordings as whole questions, in the order of `shares`."""
        return self.ask + [f"how do I {x}?" for x in self.to] + [f"what is {x}?" for x in self.about]

    def weight(self):
        """How often it is drawn: what is asked in more ways is harder to tell from the rest."""
        count = len(self.to) + len(self.about) + len(self.ask)
        return count**0.5 * (sum(self.shares) / count if self.shares else 1)

    def wording(self, rng):
        """A question in plain form, before augment()."""
        count = len(self.ask) + len(self.to) + len(self.about)
        n = rng.choices(range(count), self.shares)[0] if self.shares else rng.randrange(count)
        if n < len(self.ask):
            return self.ask[n]
        n -= len(self.ask)
        if n < len(self.to):
            return rng.choice(TO_FRAMES).replace("X", self.to[n])
        return rng.choice(ABOUT_FRAMES).replace("X", self.about[n - len(self.to)])

    def add_after(self, field, value):
        for name in field.split()[1:]:
            self.after.setdefault(name, []).extend(part.strip() for part in value.split(" | "))


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        return [line.strip() for line in f if line.strip() and not line.startswith("#")]


def load_topics(directory=CORPUS):
    """All topics by name, the out-of-scope one last."""
    topics = {}
    for name in TOPIC_FILES:
        for line in lines_of(os.path.join(directory, name)):
            if line.startswith("= "):
                topic = topics[line[2:]] = Topic(line[2:])
                continue
            field, _, value = line.partition(": ")
            if field == "answer":
                topic.answer = value
            elif field.startswith("after "):
                topic.add_after(field, value)
            else:
                getattr(topic, field).extend(part.strip() for part in value.split(" | "))
    topics[OUT_OF_SCOPE] = load_out_of_scope(os.path.join(directory, "out-of-scope.txt"))
    return topics


class OutOfScope(Topic):
    """Questions on anything else; half of them whole, half made from templates and word lists."""

    def __init__(self):
        super().__init__(OUT_OF_SCOPE)
        self.lists, self.templates, self.prose = {}, [], []

    def fill(self, template, rng):
        return re.sub(r"\{(\w+)\}", lambda m: rng.choice(self.lists[m[1]]), template)

    def wording(self, rng):
        if rng.random() < 0.5:
            return rng.choices(self.ask, self.shares)[0]
        return self.fill(rng.choice(self.templates), rng)

    def all_filled(self):
        for template in self.templates:
            names = re.findall(r"\{(\w+)\}", template)
            for words in itertools.product(*(self.lists[n] for n in names)):
                it = iter(words)
                yield re.sub(r"\{\w+\}", lambda m: next(it), template)


def load_out_of_scope(path):
    topic = OutOfScope()
    for line in lines_of(path):
        if line.startswith("answer: "):
            topic.answer = line[8:]
        elif line.startswith("facts: "):
            topic.facts = line[7:].split(" | ")
        elif line.startswith("after "):
            topic.add_after(*line.split(": ", 1))
        elif re.match("(program|document):", line):
            field, _, value = line.partition(":")
            before = getattr(topic, field)
            setattr(topic, field, f"{before}\n{value.strip()}" if before else value.strip())
        elif line.startswith("prose: "):
            topic.prose += line[7:].split(" | ")
        elif line.startswith("list "):
            name, _, words = line[5:].partition(": ")
            topic.lists[name] = words.split(" | ")
        else:
            (topic.templates if "{" in line else topic.ask).append(line)
    return topic


HELD_OUT = ("test.txt", "dev.txt", "newcomer.txt", "fresh.txt", "fresh2.txt", "fresh3.txt")
SCOPE_LISTS = ("scope.txt", "scope2.txt", "scope3.txt")  # held out, too, but without answers


def load_questions(name, directory=CORPUS):
    """[(topic names, with "/" between, and "!" before them where a wrong answer harms; question)] of a held-out file."""
    return [turn for turns in load_talks(name, directory) for turn in turns]


def load_talks(name, directory=CORPUS):
    """The same in conversations: each question is one of its own before the first "= talk", which opens one, as each further does."""
    talks, within = [], False
    for line in lines_of(os.path.join(directory, name)):
        if line == "= talk":
            within = True
            talks.append([])
            continue
        turn = tuple(line.split(": ", 1))
        if within:
            talks[-1].append(turn)
        else:
            talks.append([turn])
    return talks


# ----------------------------------------------------------------------------------------------------------------------
# Varying a wording.


def synonyms(text, rng, share):
    def swap(match):
        if rng.random() > share:
            return match[0]
        new = rng.choice(SYNONYM_OF[match[0].lower()])
        return new[0].upper() + new[1:] if match[0][0].isupper() and match.start() == 0 else new

    return SYNONYM_PATTERN.sub(swap, text)


def typing_error(word, rng):
    """Swaps, drops, doubles or replaces one letter; options, commands, numbers and short words stay."""
    if len(word) < 4 or not word.isalpha():
        return word
    i = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if kind == 1:
        return word[:i] + word[i + 1 :]
    if kind == 2:
        return word[:i] + word[i] + word[i:]
    return word[:i] + rng.choice("abcdefghijklmnopqrstuvwxyz") + word[i + 1 :]


def strange_word(rng):
    """A filler, or a word that ember cannot know: it must judge by the others."""
    if rng.random() < 0.5:
        return rng.choice(FILLERS)
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3))).lower()


def casual(text, rng):
    """Spelt as in a chat."""
    return CASUAL_PATTERN.sub(lambda m: rng.choice(CASUAL_OF[m[1].lower()]) if rng.random() < 0.7 else m[0], text)


def decapitalise(text):
    """Lower-cases the first letter of a sentence, but not that of "I" or of a name in capitals."""
    return text[0].lower() + text[1:] if text[1:2].islower() else text


def told(frame, rng):
    """A frame with its circumstances: "WHO set this up WHEN." """
    return re.sub(r"WHO|WHAT|WHERE|WHEN", lambda m: rng.choice(CIRCUMSTANCES[m[0]]), frame)


def augment(text, rng, small_talk=False):
    """What a person might type instead of `text`."""
    if rng.random() < 0.5:
        text = synonyms(text, rng, 0.35)
    if not small_talk:
        if rng.random() < 0.12:
            text = rng.choice(PREFIXES) + " " + decapitalise(text)
        if rng.random() < 0.11:
            suffix = rng.choice(SUFFIXES)
            body, mark = (text[:-1], "?") if text.endswith("?") else (text, "")
            text = body + suffix if not suffix[0].isalpha() else f"{body} {suffix}{mark}"
        elif rng.random() < 0.05:  # what it is asked for, which changes nothing in the answer
            body, mark = (text[:-1], "?") if text.endswith("?") else (text, "")
            text = f"{body} {rng.choice(TAILS)}{mark}"
        elif rng.random() < 0.06:
            body, mark = (text[:-1], "?") if text.endswith("?") else (text, "")
            text = f"{body}{rng.choice((' ', ', ', ' - '))}{told(rng.choice(ENDINGS), rng)}{mark}"
    if rng.random() < 0.10:
        text = casual(text, rng)
    words = text.split(" ")
    if rng.random() < 0.12:
        soft = [i for i, w in enumerate(words) if w.lower() in DROPPABLE]
        for i in sorted(rng.sample(soft, min(len(soft), rng.randint(1, 2))), reverse=True):
            del words[i]
    chance = rng.random()
    if len(words) > 4 and chance < 0.08:
        for _ in range(rng.randint(1, len(words) // 4)):
            del words[rng.randrange(len(words))]
    elif len(words) > 2 and chance < 0.18:
        i = rng.randrange(len(words) + 1)
        words[i : i + rng.randrange(2)] = [strange_word(rng)]
    if rng.random() < 0.11:
        for _ in range(rng.randint(1, 2)):
            i = rng.randrange(len(words))
            words[i] = typing_error(words[i], rng)
    text = " ".join(words).strip() or text
    if not small_talk and rng.random() < 0.12:
        story = rng.choice(LEAD_INS) if rng.random() < 0.5 else told(rng.choice(STORIES), rng)
        text = story[0].upper() + story[1:] + " " + text[0].upper() + text[1:]
    if rng.random() < 0.35:
        text = text.rstrip("?!. ") or text
    elif text[-1].isalnum() and rng.random() < 0.25:
        text += rng.choice("?.??!")
    case = rng.random()
    if case < 0.45:
        text = text[0].upper() + text[1:]
    elif case < 0.70:
        text = text.lower()
    elif case < 0.75:
        text = text.upper()
    return text


def normalise(text):
    """Lower case, letters and digits and the signs of options only: how questions are compared."""
    return " ".join(re.sub(r"[^\w/ -]+", " ", text.lower()).split())


def words_of(plain):
    return tuple(sorted(plain.split()))


# ----------------------------------------------------------------------------------------------------------------------
# Conversations.


NOUNS = """
house | river | contract | winter | engine | village | minister | garden | bridge | market | doctor | letter | story | mountain | harbour | school | paper | committee
price | method | patient | cell | theorem | army | island | window | kitchen | signal | battery | orchestra | painter | tenant | judge | farmer | teacher | ship | bank
study | table | result | customer | road | animal | queen | forest | evening | stone | voice | problem | invoice | theatre | station | bird | field | church | factory
Haus | Jahr | Vertrag | Zeit | Garten | Kind | maison | ville | temps | livre | casa | tiempo | libro | ciudad | Straße | Rechnung | Herr | Frau | année | mundo
"""
VERBS = """
was | had | became | showed | left | carried | sold | opened | painted | signed | found | described | crossed | measured | closed | followed | lost | built | wrote
is | has | shows | depends on | increases | falls | returns | contains | supports | rejects | ist | hat | wurde | est | avait | es | fue | und | et | y | but | because
"""
PRONOUNS = "the | a | his | her | their | this | every | no | its | our | one | der | die | das | le | la | el | una | in | of | with | under | after | near | for | without | old | new | small"


NOUN_WORDS, VERB_WORDS, PRONOUN_WORDS = entries(NOUNS), entries(VERBS), entries(PRONOUNS)


def nonsense(rng):
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))


def sentence_of_words(rng):
    words = [rng.choice(rng.choice((NOUN_WORDS, VERB_WORDS, PRONOUN_WORDS, NOUN_WORDS))) for _ in range(rng.randint(4, 16))]
    return " ".join([words[0].capitalize(), *words[1:]]) + rng.choice(".....,;:?!")


def line_of_data(kind, rng):
    """A line as files have them: accounts, logs, tables, settings, programs, addresses, numbers, JSON, Markdown."""
    word, number = (lambda: nonsense(rng)), (lambda: str(rng.choice((rng.randrange(10), rng.randrange(1000), rng.randrange(10**6)))))
    return {
        "accounts": lambda: f"{word()}:x:{number()}:{number()}:{word()}:/home/{word()}:/bin/{word()}",
        "log": lambda: f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} {rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02} {word()}[{number()}]: {word()} {word()} {number()}",
        "table": lambda: rng.choice(",;\t|").join((word(), number(), number(), word())),
        "settings": lambda: f"{word()}{rng.choice((' = ', '=', ': '))}{rng.choice((word, number))()}",
        "program": lambda: rng.choice((f"int {word()}(char *{word()}) {{", f"    return {word()}[{number()}];", "}", f"def {word()}({word()}):", f"    {word()} = {word()} + {number()}", f"#include <{word()}.h>", f"for {word()} in {word()}:", f"    if ({word()} < {number()}) {word()}();", f"// {word()} {word()}", f"import {word()}")),
        "addresses": lambda: f"{rng.choice(('https://', '/usr/', '/var/lib/', 'www.', ''))}{word()}{rng.choice('./-@')}{word()}{rng.choice(('.com', '.html', '/', '.org', '.c'))}",
        "numbers": lambda: " ".join(number() for _ in range(rng.randint(2, 9))),
        "json": lambda: f'{{"{word()}": {number()}, "{word()}": "{word()} {word()}"}}',
        "markdown": lambda: rng.choice((f"# {word()}", f"- {word()} {word()}", f"**{word()}** {sentence_of_words(rng)}", f"> {word()}", "```", f"{number()}. {word()}")),
        "words": lambda: sentence_of_words(rng),
    }[kind]()


KINDS = ("accounts", "log", "table", "settings", "program", "addresses", "numbers", "json", "markdown", "words", "words", "words")


LONG, LONG_TEXT = 0.08, 4500  # share of the documents that are long, and the bytes at which these end


def document(topic, manual, rng):
    """A text with a request or without, as from a pipe: ember can only decline, even where the text is its own `manual`."""

    def sentence():
        return rng.choice(topic.prose) if rng.random() < 0.6 else topic.wording(rng).rstrip("?.") + rng.choice(".?!")

    long = rng.random() < LONG
    count = round(12 * 10 ** rng.random()) if long else rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8, 12))
    kind = rng.random()
    if kind < 0.35:
        sentences = [sentence() for _ in range(count)]
        text = rng.choice((" ", "\n")).join(s[0].upper() + s[1:] for s in sentences)[:LONG_TEXT]
    elif kind < 0.4:
        text = rng.choice((" ", "\n")).join(rng.choice(manual) for _ in range(count + 1))[:LONG_TEXT]
    else:
        kinds = rng.sample(KINDS, rng.choice((1, 1, 1, 2)))
        text = "\n".join(line_of_data(rng.choice(kinds), rng) for _ in range(count))[:LONG_TEXT]
        if rng.random() < 0.1:
            return text
    request = rng.choice(DOCUMENT_REQUESTS)
    if rng.random() < 0.3:  # as -f and /read put it
        return f'<document name="{nonsense(rng)}{rng.choice((".txt", ".md", ".c", ".log", ""))}">\n{text}\n</document>\n\n{request}'
    return f"{text}{rng.choice((chr(10), chr(10) * 2))}{request}" if rng.random() < 0.8 else f"{request}: {text}"


TURNS, TURN_WEIGHTS = (1, 2, 3, 4, 5, 6), (0.86, 0.05, 0.03, 0.03, 0.02, 0.01)


class Grammar:
    """What draws conversations. A question that comes out as a held-out one, around it, or with its words in another order, is drawn again."""

    def __init__(self, topics, seed):
        self.topics, self.rng = topics, random.Random(seed)
        self.names = [name for name in topics if name != OUT_OF_SCOPE]
        self.weights = [topics[name].weight() for name in self.names]
        self.manual = [topics[name].answer for name in self.names]
        self.follow_ups = {}  # name of a topic -> [(topic, wording)] that may come next
        for topic in topics.values():
            for name, wordings in topic.after.items():
                self.follow_ups.setdefault(name, []).extend((topic, wording) for wording in wordings)
        self.held_out = [f" {normalise(q)} " for name in HELD_OUT for _, q in load_questions(name)]
        self.held_words = {words_of(q) for q in self.held_out}

    def draw(self, before):
        """(topic, question); `before` names the topic that was answered before, or is None."""
        rng = self.rng
        following = self.follow_ups.get(before)
        if following and rng.random() < 0.2:
            topic, wording = rng.choice(following)
            return topic, augment(wording, rng, small_talk=True)
        name = OUT_OF_SCOPE if rng.random() < 0.16 else rng.choices(self.names, self.weights)[0]
        topic = self.topics[name]
        if name == OUT_OF_SCOPE and rng.random() < 0.14:
            return topic, document(topic, self.manual, rng)
        return topic, augment(topic.wording(rng), rng, name in SMALL_TALK)

    def question(self, before):
        while True:
            topic, text = self.draw(before)
            plain = f" {normalise(text)} "
            if words_of(plain) not in self.held_words and not any(held in plain for held in self.held_out):
                return topic, text

    def conversation(self):
        """[(role, text), ...], ending with an answer."""
        turns = []
        if self.rng.random() < 0.10:
            turns.append(("system", self.rng.choice(SYSTEM_TEXTS)))
        before = None
        for _ in range(self.rng.choices(TURNS, TURN_WEIGHTS)[0]):
            topic, text = self.question(before)
            turns += [("user", text), ("assistant", topic.answer)]
            before = topic.name
        return turns


def conversations(count, seed=1, topics=None):
    grammar = Grammar(topics or load_topics(), seed)
    return [grammar.conversation() for _ in range(count)]


def written_wordings(topics):
    """Every hand-written question, in every frame, before augment()."""
    for topic in topics.values():
        yield from topic.ask
        yield from itertools.chain(*topic.after.values())
        for frames, parts in ((TO_FRAMES, topic.to), (ABOUT_FRAMES, topic.about)):
            for frame, part in itertools.product(frames, parts):
                yield frame.replace("X", part)
    yield from topics[OUT_OF_SCOPE].all_filled()


def leaked(held_out, texts):
    """The held-out questions that occur, normalised, in one of the training texts: as a part of it, or its words in another order."""
    plain = {f" {normalise(t)} " for t in texts}
    words = {words_of(t) for t in plain}
    everything = "\n" + "\n".join(plain) + "\n"
    return [q for q in held_out if f" {normalise(q)} " in everything or words_of(normalise(q)) in words]
