"""The command grammar's rules and intents, in the pattern language of :mod:`server.lab.corpora.grammar`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["INTENTS", "RULES", "Intent"]


@dataclass(frozen=True, slots=True)
class Intent:
    """weight: how often it is drawn, relative to the others; patterns: drawn uniformly."""

    weight: float
    patterns: tuple[str, ...]


RULES: Mapping[str, str] = {
    "polite": "[please|thanks|thank you|for me|right now]",
    "ask": """(can i (get|have) | could i (get|have) | may i have | may i get | get me | give me | make me | brew me |
    brew
        | make | i'd like | i would like | i want | i'll have | i'll take | i need | let me have | bring me | prepare
        | we need | please make | please brew | could you make | can you make me)""",
    "article": "(a|a|a|an|the|another|my usual)",
    "how": """({size} | {shots} | {roast} | {size} {shots} | {shots} {size} | {roast} {size} | {size} {roast}
        | {shots} {roast} | {roast} {shots} | {size} {roast} {shots} | {size} {shots} {roast} | {shots} {size} {roast}
        | {shots} {roast} {size} | {roast} {size} {shots} | {roast} {shots} {size} | {strength} | {strength} {size})""",
    "extras": """with ({milk} | {sugar} | {milk} and {sugar} | {sugar} and {milk} | {milk} | {sugar})""",
    "could": "(can you|could you|would you|please|hey can you|i want you to|i'd like you to)",
    "to": "(i want to|i'd like to|i need to|let me|help me|remind me to)",
    "digits3": "{digit1} {digit2} {digit3}",
    "digits4": "<digits3> {digit4}",
    "digits5": "<digits4> {digit5}",
    "digits6": "<digits5> {digit6}",
    "digits7": "<digits6> {digit7}",
    "digits8": "<digits7> {digit8}",
}

INTENTS: Mapping[str, Intent] = {
    "order_drink": Intent(
        8.0,
        (
            "<ask> <article> {drink} <polite>",
            "<ask> <article> <how> {drink} <polite>",
            "<ask> <article> <how> {drink}",
            "<ask> <article> {drink} <extras>",
            "<ask> <article> <how> {drink} <extras>",
            "<ask> <article> <how> {drink} <extras> <polite>",
            "<article> [<how>] {drink} [<extras>]",
            "[<how>] {drink} <extras>",
            "<ask> <article> [<how>] {drink} in (a|the|my) {cup}",
            "make (it|that|mine) ({size}|{shots}|{roast}|{strength}) <polite>",
            "(add|put|pour) ({sugar}|{milk}) (in|into|to) (it|that|my cup)",
            "(how about|what about) <article> {drink} [<extras>]",
            "stop the {drink}",
            "(cancel|repeat) my {drink}",
        ),
    ),
    "digits": Intent(
        4.0,
        (
            "<digits4>",
            "<digits5>",
            "<digits6>",
            "<digits7>",
            "<digits3>",
            "<digits8>",
            "(dial|call number|call|dial number) (<digits5>|<digits6>|<digits7>|<digits8>)",
            "(my|the) (code|pin|pin code|number|password) is (<digits3>|<digits4>|<digits5>|<digits6>)",
            "(enter|type|unlock with|use) [the] [code] (<digits3>|<digits4>|<digits5>|<digits6>)",
            "(order|ticket|flight) number (<digits3>|<digits4>|<digits5>)",
        ),
    ),
    "timer": Intent(
        1.5,
        (
            "(set|start|make|create) (a|another|my) timer for {duration} <polite>",
            "[<could>] (set|start) (a|the) timer (of|to) {duration}",
            "timer for {duration}",
            "(wake me|call me|ping me) in {duration}",
            "(add|give me) {duration} (to|on) the timer",
            "how (much time is|many minutes are) left on (the|my) timer",
            "(stop|pause|cancel|reset) (the|my) timer",
            "count down from {duration}",
        ),
    ),
    "alarm": Intent(
        1.5,
        (
            "(set|make|create) (an|my|the|another) alarm for {time} [{day}] <polite>",
            "wake me [up] at {time} [{day}]",
            "[<could>] wake me up {day} at {time}",
            "(cancel|delete|turn off|snooze|stop) (the|my) [{time}] alarm",
            "move my alarm to {time}",
            "when is my next alarm",
        ),
    ),
    "reminder": Intent(
        1.5,
        (
            "remind me to {task} [{day}] <polite>",
            "remind me {day} to {task}",
            "remind me to {task} at {time}",
            "[<could>] remind me to {task} in {duration}",
            "(don't let me forget|i have) to {task}",
            "(cancel|delete) the reminder to {task}",
        ),
    ),
    "lights": Intent(
        2.5,
        (
            "[<could>] (turn|switch) (on|off) the {room} {appliance} <polite>",
            "[<could>] (turn|switch) the {appliance} (on|off) [in the {room}]",
            "(turn|switch) (on|off) the {appliance} (in the {room}|upstairs|downstairs)",
            "(dim|set|brighten) the {room} {appliance} to {level}",
            "(make|set|turn) the {appliance} [in the {room}] {color}",
            "set the {appliance} to {level}",
            "(open|close|lock|unlock) the ({room} door|{room} window|front door|back door)",
            "is the {appliance} (still on|off|running) [in the {room}]",
            "(start|stop|pause) the {appliance}",
            "(activate|start|turn on) {scene}",
            "it's too (dark|bright|loud|warm|cold) in the {room}",
        ),
    ),
    "thermostat": Intent(
        1.0,
        (
            "(set|turn) the (heating|thermostat|temperature) [in the {room}] to {temperature}",
            "make the {room} (warmer|cooler|a little warmer|colder)",
            "what's the temperature (in the {room}|outside|in {city})",
            "(keep|hold) it at {temperature} [until {time}]",
        ),
    ),
    "music": Intent(
        2.5,
        (
            "[<could>] play {song} <polite>",
            "play {song} by {artist}",
            "[<could>] play (something|some music|a song|an album|the new album) by {artist}",
            "play (some|a little|my|more) {genre} [music] [in the {room}]",
            "(put on|start|shuffle|open) (my|the) {playlist} playlist",
            "<to> (listen to|hear) ({song}|{artist}|{genre}|{song} by {artist})",
            "play {artist} (in the {room}|everywhere)",
            "add {song} to [my] {playlist}",
            "who sings {song}",
            "(skip|next|pause|stop|resume) [the|this] (song|music|track)",
            "(turn|set) the volume (up|down|to {level})",
            "what song is (this|playing)",
            "(tune to|play|switch to) {station}",
        ),
    ),
    "call": Intent(
        2.0,
        (
            "[<could>] (call|phone|ring|dial) {contact} <polite>",
            "call {contact} (on the mobile|back|right away|on video)",
            "(make|start) a (video call|phone call) (to|with) {contact}",
            "<to> (talk to|speak with|call) {contact}",
            "answer the phone",
            "hang up [the phone]",
            "(redial|call back) the last number",
        ),
    ),
    "message": Intent(
        2.0,
        (
            "(send|write) a (message|text) to {contact}",
            "(text|message|tell) {contact} {message}",
            "send {contact} a message (saying|that says) {message}",
            "(tell {contact} that|let {contact} know) {message}",
            "reply {message}",
            "read (my messages|the last message) [from {contact}]",
            "(did {contact} answer|has {contact} answered|has {contact} called) [me|yet]",
        ),
    ),
    "shopping": Intent(
        2.0,
        (
            "[<could>] (add|put) {item} (to|on) (my|the|our) {list} <polite>",
            "(remove|delete|take) {item} (from|off) (my|the) {list}",
            "(we're|i'm|we are) (out of|running low on) {item}",
            "(buy|order|get) [more|some] {item} [{day}]",
            "<to> buy {item}",
            "what's on (my|the) {list}",
            "do (we|i) (have|need) [any|more] {item}",
            "clear (my|the) {list}",
        ),
    ),
    "weather": Intent(
        1.5,
        (
            "what's the weather (like|going to be) [in {city}] [{day}]",
            "(how's|what is) the weather in {city} [{day}]",
            "will (it be {weather}|there be {weather}|we have {weather}) [in {city}] {day}",
            "is there any {weather} (forecast|expected) [in {city}] [for {day}]",
            "weather [forecast] for {city} [{day}]",
            "do i need (an umbrella|a jacket|sunglasses|a coat) {day}",
            "when (does the sun|will the sun) (rise|set) {day}",
        ),
    ),
    "navigate": Intent(
        1.5,
        (
            "(navigate|drive|take me|directions|go) to ({place}|{city}) [{transport}] <polite>",
            "how (far|long) (is it|does it take) to (get to )({place}|{city}) [{transport}]",
            "(how do i get|show me the way) to ({place}|{city}) [{transport}]",
            "find (the fastest|a|another|the shortest) (route|way) to ({place}|{city})",
            "(what's the|how is the) traffic (on the way |)to ({place}|{city})",
            "(avoid|are there any) (tolls|highways|road works) [on the way]",
            "when is the next (bus|train) to ({city}|{place})",
        ),
    ),
    "calendar": Intent(
        1.0,
        (
            "(schedule|add|create|plan) (a|my|the) {event} for {day} [at {time}]",
            "(move|cancel|postpone) (my|the) {event} [to {day}]",
            "when is (my|the) [next] {event}",
            "what's on my calendar {day}",
            "invite {contact} to (the|my) {event}",
            "am i (free|busy) {day} [at {time}]",
        ),
    ),
    "question": Intent(
        1.0,
        (
            "what time is it [in {city}]",
            "what's the date {day}",
            "(read|tell) me the {topic}",
            "(what are the|give me the) (latest|top) {topic}",
            "how do you say {message} in {language}",
            "translate {message} (to|into) {language}",
            "tell me a (joke|story|fun fact)",
            "(hello|hi) [there]",
            "(never mind|cancel that|stop it|go back|say that again|help|be quiet|louder|yes|no|okay|start over)",
            "(what can you do|who are you|how are you|thank you very much)",
        ),
    ),
}
