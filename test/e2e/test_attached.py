"""Chats that are attached to a resident engine: what their user sees and saves is that of a chat with an engine of its own. Runs on the fake engine."""
import json
import os
import unittest

from server import Case

LIMIT = "/continue resumes it)"


class Attached(Case):
    def chat(self, *args):
        t = self.terminal("--save", "kept", *args, cols=200)
        self.at = t.prompt(text="kept> ")
        return t

    def ask(self, t, text, *ends):
        """Types a line; waits for one of these texts and the next prompt, and returns the one that came."""
        begin = self.at
        t.send(text + "\r")
        self.at = t.prompt(t.until("|".join(ends).encode(), begin) if ends else begin, "kept> ")
        return t.out[begin:self.at].decode()

    def leave(self, t):
        """Returns the messages of the saved conversation, and deletes it."""
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("kept")) as f:
            messages = json.load(f)["body"]["messages"]
        os.unlink(self.session_file("kept"))
        return messages

    def both(self, dialogue, *args):
        """Runs the dialogue with an engine of its own and attached; returns the messages, which are the same."""
        own = dialogue(self.chat("--no-attach", *args))
        with self.subTest("attached"):
            got = dialogue(self.chat(*args))
            self.assertEqual(got, own)
        return own

    def test_continued_in_pieces(self):
        """An answer that its limit cuts within thinking, a call, or markup that is no call goes on there."""
        s = self.serve()
        tool = self.write("tools/touch.json", json.dumps({"name": "touch", "description": "d", "parameters": {"type": "object"}, "command": ["cat"]}))
        for limit, question in (("5", "think"), ("1", "think"), ("7", "call"), ("6", 'use touch {"a": "xxxxxxxxxxxx", "n": 18446744073709551617}'), ("4", "nonsense")):
            def dialogue(t):
                for i in range(60):
                    if "resumes it)" not in self.ask(t, "/continue" if i else question):
                        break
                self.assertGreater(i, 1)
                return self.leave(t)
            messages = self.both(dialogue, "-n", limit, "--tool", tool, "--allow", "all")
            if question == "think":
                self.assertEqual((messages[1]["thinking"], messages[1]["content"], "partial" in messages[1]), ("reasoning here", "the answer", False))
            elif question[:3] == "use":
                self.assertEqual(messages[2]["content"], '{"a": "xxxxxxxxxxxx", "n": 18446744073709551617}')
                self.assertIn("It says", messages[3]["content"])
        self.assertGreater(s.status()["answered"], 15)

    def test_stopped_while_thinking(self):
        """What a stopped answer lacks follows, whole and once."""
        self.serve()

        def dialogue(t):
            for text, seen in (("ponder", "idea2"), ("/continue", "idea9"), ("/continue", "w5")):
                begin = self.at
                t.send(text + "\r")
                t.until(seen, begin)
                t.send("\x03")
                self.at = t.prompt(t.until("(stopped; /continue resumes it)", begin), "kept> ")
            self.ask(t, "/continue", "w59")
            return self.leave(t)
        def held(t):
            begin = self.at
            t.send("slow\r")
            t.until("w25", begin)
            t.send("\x03")
            self.at = t.prompt(t.until("(stopped; /continue resumes it)", begin), "kept> ")
            self.ask(t, "/continue", "w59")
            return self.leave(t)
        messages = self.both(dialogue, "--show-thinking=always")
        self.assertEqual(messages[1]["thinking"], "".join(f"idea{i} " for i in range(60)))
        self.assertEqual(messages[1]["content"], "".join(f"w{i} " for i in range(60)))
        until = [o for i in range(8) for begin in (f"w{i}", f"{i} ") for o in ("--until", begin + "end")]  # most tokens end with the beginning of one of these
        self.assertEqual(self.both(held, *until)[1]["content"], messages[1]["content"])

    def test_continued_after_a_stop_string(self):
        """After a stop string an answer goes on from its text: nothing is missing."""
        self.serve()

        def dialogue(t):
            self.ask(t, "long", "word2")
            self.ask(t, "/continue", "kept")
            return self.leave(t)
        self.assertEqual(self.both(dialogue, "--until", "word3")[1]["content"], "word0 word1 word2 ")


if __name__ == "__main__":
    unittest.main()
