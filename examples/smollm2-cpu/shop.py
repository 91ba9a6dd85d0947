"""A task for a very small instruct model: ask a tool for a price and pass it on."""

from collections.abc import Iterator

from moonmill import Message, MultiTurnEnv, Rollout, Task, ToolCall, reward, tool

ITEMS = (
    *("lamp", "chair", "kettle", "spoon", "mirror", "carpet", "clock", "basket", "candle", "pillow", "bottle", "drum"),
    *("ladder", "hammer", "bucket", "blanket", "teapot", "shelf", "broom", "vase", "rope", "tent", "bell", "brush"),
)
SHOWN = {"map": 38, "coat": 71}


def shown() -> tuple[Message, ...]:
    """Questions answered as they should be: how a model this small learns what to do. With one it never calls."""
    messages: list[Message] = []
    for item, price in SHOWN.items():
        messages += [
            Message("user", f"What is the price of a {item}?"),
            Message("assistant", tool_calls=(ToolCall(f"shown-{item}", "price", {"item": item}),)),
            Message("tool", str(price), tool_call_id=f"shown-{item}", name="price"),
            Message("assistant", f"A {item} costs {price}."),
        ]
    return tuple(messages)


class Shop(MultiTurnEnv):
    """Say what something costs: the price list is behind a tool."""

    max_turns = 3

    def tasks(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            item, price = rng.choice(ITEMS), rng.randint(10, 99)
            question = Message("user", f"What is the price of a {item}?")
            yield Task((*shown(), question), answer={"item": item, "price": price})

    @tool
    def price(self, item: str) -> str:
        """Look up a price."""
        wanted = self.task.answer
        return str(wanted["price"]) if item.lower().strip() == wanted["item"] else f"no {item} here"

    @reward
    def correct(self, rollout: Rollout) -> float:
        """1 for the price, after it was looked up."""
        asked = any(message.role == "tool" for message in rollout.messages[len(shown()) :])
        return float(asked and rollout.final_number() == self.task.answer["price"])
