"""What the grammar of corpus.py draws from: frames, prefixes, synonyms, circumstances, endings, and the requests that come with documents.
Tables alone; a line holds several entries with "|" between them. Their order counts: the same seed draws the same text."""

import re

TO_FRAMES = """
how do I X? | how do I X? | how can I X? | how can I X? | how to X | how to X? | how would I X?
how could I X? | X | how does one X? | how do you X? | how should I X? | what is the way to X?
what's the best way to X? | is there a way to X? | is there any way to X? | is there an option to X?
is there a command to X? | can I X? | can I X? | could I X? | may I X? | is it possible to X? | I want to X
I want to X, how? | I need to X | I'd like to X | I would like to X | I would like to X, is that possible?
I'm trying to X | I am trying to X | what do I type to X? | what do I have to do to X? | what must I do to X?
which option lets me X? | which option do I need to X? | which flag do I use to X? | what is the command to X?
what's the command to X? | tell me how to X | show me how to X | can you tell me how to X? | explain how to X
let me X | could you explain how to X? | what should I do to X? | what do I do if I want to X?
does hearth let me X? | can hearth help me X? | how do I get hearth to X? | what if I want to X? | I can't X
I don't know how to X | where can I X? | is there some trick to X? | can one X? | am I able to X?
how is it possible to X? | what would I need to X? | it would be nice to X | the way to X
what are the steps to X? | which command do I use to X? | will hearth let me X? | I wish to X | help me X
how might I X? | how I can X? | how to do to X? | is it possible for me to X? | it is possible to X? | how can we X?
please, I want X, how do? | how does a person X? | what to do if I want to X | anybody know how to X? | need to X
i wanna X | how do i go about it if I want to X? | so how do I X then? | and how do I X? | ok and to X?
what's needed to X? | how 2 X | I have to X today, how? | would like to X | am trying to X but I don't know how
"""
ABOUT_FRAMES = """
what is X? | what is X? | what's X? | what's X | what does X do? | what does X mean? | explain X
please explain X | tell me about X | X | X? | what is X for? | how does X work? | how do I use X?
when should I use X? | describe X | can you explain X? | I have a question about X | what about X?
help with X | info on X | information on X | tell me more about X | what can X do? | how is X used?
what do you know about X? | why is there X? | give me details of X | could you describe X?
I don't understand X | meaning of X | what exactly is X? | I read about X, what is it? | more on X
what do I need to know about X? | use of X | what happens with X? | does hearth have X?
what should I know about X? | how do X work? | what are X? | where can I learn about X?
whats X | and X? | what is meant by X? | X, please explain | can u explain X | I heard of X, what is that?
X? what is it? | somebody mentioned X | X - what's that? | what is it with X? | never heard of X | more about X please
"""
PREFIXES = """
hey, | hi, | hello, | please | please tell me: | tell me, | quick question: | ok, | so | well, | and | now
excuse me, | also, | sorry, | hmm, | one more thing: | I was wondering, | ember, | next: | another question:
right, | good, | say, | do you know: | can you tell me: | um, | could you tell me: | simple question,
I have a problem: | thanks. | great, | but | by the way, | let me ask: | question: | maybe you know:
dear ember,
"""
SUFFIXES = """
please | in hearth | with hearth | here | exactly | thanks | then | now | , please | for me | somehow
by the way | in this program | ? thanks | ! | !! | ?? | . | ... | ? please help | , thank you
at the terminal | , any idea? | , do you know? | , if I may ask | on my machine
"""
SYNONYMS = """
show | display | print | see | view | look at
answer | reply | response | result
answers | replies | responses | results
question | query
questions | queries
conversation | chat | dialogue | discussion
conversations | chats | dialogues | discussions
computer | machine | box | PC | laptop | system
stop | halt | abort | cancel | interrupt | end
quit | exit | leave | get out of
change | modify | alter | adjust | tweak
choose | select | pick | decide on
use | employ | make use of | take | work with | utilise | apply
fast | quick | speedy | swift
faster | quicker | speedier
slow | sluggish | not fast
slowly | at a crawl | sluggishly
limit | cap | restrict | bound | control
longer | bigger | larger
shorter | briefer | more concise
too long | too lengthy | much too long | far too long | way too long
directory | folder | dir
graphics card | GPU | video card | graphics board
graphics cards | GPUs | video cards | cards
processor | CPU
cores | processors | CPUs | threads
memory | RAM
option | flag | switch | parameter | argument
options | flags | switches | parameters | arguments
settings | options | preferences | parameters
error | failure | problem | issue | trouble
keep | store | save | preserve | retain
saved | stored | kept | preserved
stored | saved | kept | put
kept | stored | saved | held
find | locate | discover | look up
find out | learn | know | figure out | discover | be told
start | launch | run | fire up | begin
force | insist on | enforce | demand | require
turn off | disable | switch off | deactivate | get rid of | stop | forbid | suppress | avoid
turn on | enable | switch on | activate
hide | suppress | remove | not show | silence | get rid of
another | a different | some other | one more | a second
several | multiple | many | a few | two or more | more than one
damaged | broken | corrupt | corrupted | faulty | defective
check | test | examine | make sure of | validate | inspect
delete | remove | erase | get rid of | throw away
write | type | enter | compose | put down
go back | return | get back | come back | step back
go on | continue | carry on | proceed | keep going
wrong | incorrect | not right | mistaken | false | not correct
needed | required | necessary
need | require | want | have to have
supported | possible | available | understood | accepted | known
support | handle | understand | accept | cope with | know
explain | describe | clarify | lay out | make clear
big | large | huge | giant | enormous
small | tiny | little
measure | gauge | determine | time | quantify
random | unpredictable | chaotic | arbitrary
exactly | precisely
the same | exactly the same | an identical | the identical
old | earlier | previous | former | yesterday's | past
last | latest | previous | most recent | final
earlier | before | previously | some time ago
which | what
how many | what number of
way | method | manner
hearth | hearth | the program | this program | this tool | the tool | the application
model | checkpoint | LLM | network
models | checkpoints | LLMs | networks
create | make | produce | generate
generated | produced | created
generate | produce | create | write
read | process | go through | take in
pass | give | hand over | supply | provide | send | feed
give | pass | hand over | supply | provide
put | place | stick
permanently | for good | for ever
each time | every time | always | on every run | on every call | whenever I start it
twice | two times | again | once more
again | once more | another time | anew | over
document | article | text | paper | report
summarise | summarize | sum up | give a summary of | condense | shorten
attach | add | include | append
list | enumerate | show | give
download | fetch | get
downloaded | fetched | got | saved | pulled
type | enter | write | key in
text | writing | prose
like | enjoy | prefer
happens | occurs | goes on | takes place
kind | sort | type
without | with no | lacking | not having
only | just | merely | nothing but
shell | command line | terminal
get | obtain | receive | have
want | wish | would like | prefer
repeats itself | says the same thing | goes round in circles | keeps repeating | loops
repeating | saying over and over | looping on
creative | imaginative | inventive | surprising | interesting | lively | original
speed | performance | pace | throughput
size | length | extent
cut off | truncated | chopped off | interrupted
inside | within | in
in the middle | halfway | midway | before the end
automatically | by itself | on its own
prompt | question | input
session | conversation | chat
sessions | conversations | chats
switch to | go to | jump to | move to | change to | hop to
let | allow | permit
words | tokens
directly | straight | right away | immediately
reproduce | repeat | recreate | get back
thinking | reasoning | thoughts | pondering
mistake | error | blunder | slip
made | done | created
file | text file
files | documents
look | see | peek
buy | purchase | get | order
talk to | speak to | chat with | converse with
message | question | prompt | input
chat | conversation | talk | dialogue | session
chats | conversations | talks | dialogues | discussions
graphics | video
card | graphics card | GPU | video card
cards | graphics cards | GPUs
gpu | graphics card | video card | card
machine | computer | PC | box | laptop | server
pc | computer | laptop | machine | workstation | desktop
ram | memory | main memory | RAM
gb | gigabytes | gigs | GB
remove | delete | erase | get rid of | throw out | discard
erase | delete | wipe | remove | destroy
close | shut | finish
leave | quit | exit | get out of | get away from
open | load | start
send | submit | pass | transmit
print | show | display | output | write out
tell | show | inform
ask | query | question
know | find out | understand | be sure
see | view | look at | find
run | start | execute | use
work | function | run | operate
works | functions | runs | operates
fix | repair | solve | correct | sort out
cost | price
install | set up | put on | add
load | open | bring up
save | keep | store | put away
lost | gone | vanished | missing | no longer there
gone | lost | away | vanished
safe | secure | protected
private | confidential | personal | secret
data | information | texts
reply | answer | response | output
writes | produces | prints | spits out | outputs
says | tells me | claims | prints
bad | poor | terrible | awful | useless | rubbish
good | decent | fine | sensible | useful
best | ideal | optimal | most suitable
better | superior | nicer | stronger
right | correct | true | proper
broken | damaged | corrupt | defective | ruined
failed | broke | crashed | did not work
crash | breakdown | failure
crashed | died | went down | failed
stopped | ended | halted | broke off | quit
ended | stopped | finished | terminated
finish | complete | end
once | one time | a single time
first | initial
later | afterwards | another time | some other day
yesterday | last night | the other day | last week | this morning
tomorrow | next week | another day | later
always | every time | all the time | constantly | each time
never | at no time | not ever
often | frequently | many times
enough | sufficient | adequate | okay
too little | not enough | insufficient
much | a lot of
many | lots of | plenty of | a lot of
more | additional | extra | further
fewer | less
less | a smaller amount of
everything | all of it | it all | all
something | some thing
nothing | not a thing
still | yet | even now
different | other | another | distinct
new | fresh | another | further
own | personal
laptop | notebook | computer | portable
terminal | console | shell window | command line
screen | display | monitor | terminal
disk | hard drive | drive | SSD | storage
folder | directory | path | place
path | location | place | directory
press | hit | push | type
typed | entered | wrote | keyed in
typing | writing | entering
paper | article | document | essay
report | document | paper
notes | minutes | jottings
book | novel | manual | long text
summary | digest | abstract | short version
script | shell script | program | job
program | tool | application | software | command
tool | program | utility
commands | instructions | orders
flag | option | switch | parameter
flags | options | switches | parameters
setting | option | value | parameter
default | standard | normal | usual
version | release | build
internet | net | web | network | online world
network | net | internet | LAN
cloud | internet | some server
company | firm | vendor | corporation
online | on the internet | in the cloud
local | on my machine | here
thoughts | reasoning | thinking | musings
boring | dull | tedious | flat | bland
crazy | wild | mad | insane
long | lengthy | extended
short | brief | concise | small
quick | fast | rapid | speedy
quickly | fast | rapidly | soon
large | big | huge | enormous
little | small | tiny | not much
real | proper | true | actual | genuine
whole | complete | entire | full
half | fifty percent of
busy | occupied | working | under load
idle | unused | doing nothing | asleep
wait | hang on | sit there
hangs | freezes | is stuck | does not move
stuck | frozen | hanging | jammed
normal | usual | expected | as it should be
possible | feasible | doable | an option
allowed | permitted | ok | possible
necessary | needed | required | a must
understand | get | grasp | comprehend
learn | find out | study
remember | recall | keep in mind | retain
forget | lose | drop
trust | believe | rely on | count on
believe | trust | rely on
sure | certain | confident
true | correct | right
lie | tell lies | say false things
wrong thing | nonsense | something silly
mistakes | errors | blunders | faults
errors | mistakes | failures | problems
missing | not there | absent | lost
complete | whole | full | finished
weights | parameters | model files | safetensors
experts | expert networks
picture | image | photo
pictures | images | photos
sound | audio | voice
undo | take back | revert | reverse
rest | remainder | remaining part | end
middle | midst | midway
fill | use up
room | space | capacity
left | remaining
copy | duplicate
two | both | a couple of
people | persons | users | folks
friend | colleague | buddy | mate
colleague | coworker | friend
"""
DROPPABLE = set("the a an is do does to of my i it that are in for this me".split())
FILLERS = """
really | actually | maybe | just | still | perhaps | always | simply | right now | quickly | kind of | even
all | today | at once | basically | ever | probably | easily | myself | properly | somewhat | usually
tomorrow | again | first | quite | safely | finally | without trouble | every day | on purpose | in practice
on Linux | at work | from now on | if possible | by hand | in this case
"""
LEAD_INS = """
I'm new to this. | I am new here. | Sorry, I'm a beginner. | Sorry for the stupid question. | I hope this is the right place to ask.
I installed it yesterday. | I've just installed it. | I built it this morning. | I have read the README. | I didn't find it in the manual.
I am on Debian. | I'm on Ubuntu 24.04. | I work on a server. | I sit at my laptop. | I use it over ssh. | I have an old computer.
My colleague told me about hearth. | A friend recommended this. | I come from ollama. | I used llama.cpp before. | I used ChatGPT until now.
I have been trying for an hour. | I tried everything. | I looked everywhere. | I googled it and found nothing. | It worked yesterday.
I'm not good with computers. | I am no programmer. | English is not my language, sorry. | My English is bad. | I have little time.
This is for work. | It's for my thesis. | I need this for a course. | My boss wants to know. | My students ask me. | It is for a friend.
Hello, I have a question. | Hi, quick one. | Hey there. | Good morning. | Ok. | Alright. | Hm. | Thanks for that. | Good, that works. | Not sure if you know this.
I am chatting right now. | I'm in the chat at the moment. | I sit in front of the prompt. | I opened hearth a minute ago. | I am a bit lost. | I am confused.
I have two graphics cards. | I have 64 GB of memory. | I downloaded a model of 300 GB. | I have DeepSeek on my disk. | I have a pdf open here.
My notes are in a text file. | I chatted with it yesterday. | I wrote some private things. | I typed the wrong thing. | It writes a long answer. | The machine is slow.
I already started it. | I have two minutes left. | Let me ask something else. | Something different now. | Next question. | One last thing. | Before I forget.
"""
TAILS = """
so that nobody else sees it | because it is private | before my boss comes | before I go home | since I share this computer
as I have little time | without reading the whole manual | for a colleague | because I need it for work | when I am in a hurry
since it annoys me | for the first time | because a friend asked me | in the simplest way | in the quickest way | once and for all
or is that not possible | or not | and what do I type for that | and is that safe | if I am allowed to ask | for good
so that it stays that way | as I am used to from elsewhere | without breaking anything | because I made a mistake | just this once
every single time | from tomorrow on | so that I can go to bed | while I am away | as root | on this old box | over ssh | in a script
"""
# Who, where and when: what a person tells beside the question, and what changes nothing in the answer.
WHO = """
my boss | my brother | my sister | my wife | my husband | my son | my daughter | my professor | my teacher | my colleague | my team | my doctor
my lawyer | my neighbour | my girlfriend | my father | my mother | my uncle | my students | my customer | our admin | the IT department | a friend
"""
WHAT = """
a novel | my thesis | a contract | the tax papers | a school project | my diary | a report | a grant proposal | a love letter | my homework | a recipe book
a lecture | an invoice | my CV | a talk | a website | a paper | the minutes of a meeting | a blog | a game | a church newsletter | a law suit | my garden
"""
WHERE = """
the office | a train | a library | the basement | the lab | a hotel | the university | a school | the hospital | a cafe | my bedroom | a data centre | the kitchen
"""
WHEN = """
last night | this morning | yesterday | on Monday | last week | an hour ago | on Friday | in March | last year | just now | before lunch | over the weekend
"""
STORIES = """
I work on WHAT. | It is for WHAT. | WHO recommended hearth. | WHO set this up WHEN. | I sit in WHERE. | I am in WHERE with my laptop. | WHO asked me about this WHEN.
I started with WHAT WHEN. | WHO and I share this machine. | I use it in WHERE. | We have this at WHERE. | WHO wants it for WHAT. | I showed it to WHO WHEN. | WHO needs WHAT by tomorrow.
I wrote about WHO WHEN. | We talked about WHAT WHEN. | I tried it WHEN in WHERE. | WHO is standing behind me. | It worked for WHO WHEN. | I promised WHO that it works. | I was busy with WHAT.
"""
ENDINGS = """
for WHO | says WHO | WHO asked | WHO wants to know | as WHO did WHEN | because of WHAT | for WHAT | while I write WHAT | in WHERE | since WHO complained | I promised it to WHO
WHO told me to ask | before WHO sees it | now that WHAT is done | on the machine in WHERE | it's about WHAT | it is urgent because of WHAT | WHO couldn't tell me
"""
CASUAL = """
do not | dont
don't | dont
does not | doesnt
doesn't | doesnt
can't | cant
cannot | cant
what is | whats
what's | whats
how is | hows
I'm | im
I am | im
it's | its
it is | its
isn't | isnt
won't | wont
didn't | didnt
I have | i got | ive
I've | ive
want to | wanna
going to | gonna
please | pls | plz
you | u
are | r
your | ur
thanks | thx
because | cuz
with | w/
without | w/o
something | smth
about | abt
tomorrow | tmrw
computer | comp | pc
seconds | secs
minutes | mins
parameters | params
documentation | docs
configuration | config
"""
SYLLABLES = (
    "an bel cor du en fi gra hol in jo kes lam mon ne or pa qui rit "
    "sto tal un ver wes xi yo zan ing er ly ed tion th ough"
).split()
SYSTEM_TEXTS = (
    "You are a helpful assistant.", "You are ember.", "Answer briefly.", "Be polite.", "You are an expert on hearth.",
    "Answer in English.", "You are a helpful, honest assistant. Keep answers short.", "Today is Monday.",
    "You are a pirate.", "Talk like a lawyer.", "The user is a beginner.", "Think step by step.",
    "Use plain text only.",
    "You are a translator.", "Always answer with one sentence.", "You are a senior engineer who reviews code.",
    "Do not use markdown.", "The user works on Linux.", "You answer questions about a program.", "Be concise.",
)
DOCUMENT_REQUESTS = (
    "Summarise this", "summarise this text", "What is this about?", "Summarize the document above.", "translate this",
    "What does the author say?", "List the main points", "Give me a short summary.", "explain this text", "tl;dr",
    "Who is mentioned in it?", "What is the conclusion?", "Write a title for this text", "Find mistakes in this text",
    "summary please", "What do you think of this?", "Is this true?",
    "Which numbers are in it?", "What should I reply?", "make this shorter", "Correct the spelling.", "What does this code do?",
    "When does it happen?", "Where does it take place?", "What's wrong here?", "Rewrite this in simple words", "What is the main idea?",
    "Put this into a table", "explain", "Who wrote this?", "what does this mean", "Give me three key points",
    "What happens in the end?", "Is anything missing?", "how many people are named here", "Which dates are given?", "What language is this?",
    "answer the letter above", "proof-read", "What is the tone of it?", "sum it up in one sentence", "Turn this into bullet points", "what is the last line",
    "Do you agree?", "find the errors", "Which of these is the largest?", "extract all names", "quote the most important sentence", "what should I do about it",
)


def entries(block):
    """The parts between "|", line by line."""
    return [part.strip() for line in block.strip().splitlines() for part in line.split("|") if part.strip()]


SYNONYM_OF = {}
for _line in SYNONYMS.strip().splitlines():
    _words = entries(_line)
    SYNONYM_OF.setdefault(_words[0].lower(), _words)
SYNONYM_PATTERN = re.compile(
    r"(?<![\w/-])(" + "|".join(re.escape(w) for w in sorted(SYNONYM_OF, key=len, reverse=True)) + r")(?![\w-])", re.I
)
CASUAL_OF = {}
for _line in CASUAL.strip().splitlines():
    _words = entries(_line)
    CASUAL_OF[_words[0].lower()] = _words[1:]
CASUAL_PATTERN = re.compile(
    r"(?<![\w/'-])(" + "|".join(re.escape(w) for w in sorted(CASUAL_OF, key=len, reverse=True)) + r")(?![\w'-])", re.I
)
TO_FRAMES, ABOUT_FRAMES, PREFIXES, SUFFIXES, FILLERS, LEAD_INS, TAILS, STORIES, ENDINGS = map(
    entries, (TO_FRAMES, ABOUT_FRAMES, PREFIXES, SUFFIXES, FILLERS, LEAD_INS, TAILS, STORIES, ENDINGS)
)
CIRCUMSTANCES = {"WHO": entries(WHO), "WHAT": entries(WHAT), "WHERE": entries(WHERE), "WHEN": entries(WHEN)}
