"""What an agent's model is told beside the author's own words."""

RULES = (
    "Work towards the task by calling tools, several at once where they do not depend on one another. "
    "When you are done, call the tool finish with the result; a text without a call is no result."
)
NUDGE = "You answered without calling a tool. Go on by calling one, or call finish with the result."
NOT_ACCEPTED = "The result was not accepted:\n{errors}\nCall finish again with a result that matches its parameters."
TOO_MANY = "This call was not made: at most {most} calls are made in one turn. Make it in the next, if it is needed."
NO_MORE_CALLS = "This call was not made: nothing more may be used. Finish with what you have."
NOT_JSON = "the arguments are no JSON object ({why}); write one that matches the parameters of the tool"
UNKNOWN = "there is no tool {name}; the tools are {known}"
BROKEN_ARGUMENTS = "the arguments were not accepted: {errors}"
BESIDE_FINISH = "This call was not made: finish stands alone. Call it again if it is needed before you finish."
REPEATED = "\n(You made this call {times} times with the same result. Do something else, or finish.)"
STEPS_LEFT = "You have {left} turns left. Come to an end, and call finish with what you have."
LAST_TURN = "This is the last turn, and there are no tools any more but finish. Call it with the best result you have."
CUT_OFF = "Your answer was cut off at the token limit, and nothing of it was done. Answer more briefly."
TRUNCATED = "\n(Only the first {shown:,} of {size:,} characters are shown. Ask for less at a time.)"
FINISH = "Ends the work with its result."
TRIED = (
    "\n\nThis was tried before and failed; nothing of it is left but what other systems were told:\n{reasons}\n"
    "Do not repeat it: take another way."
)
