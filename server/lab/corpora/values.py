"""The words of the command grammar: the public values of every slot type."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["VALUES"]


def _lines(text: str) -> tuple[str, ...]:
    """Values one by one: separated by commas or line ends."""
    return tuple(value for line in text.splitlines() for value in map(str.strip, line.split(",")) if value)


def _product(firsts: tuple[str, ...], seconds: tuple[str, ...]) -> tuple[str, ...]:
    """Every first before every second; an empty first stands for the second alone."""
    return tuple(f"{first} {second}".strip() for first in firsts for second in seconds)


_AMOUNTS = ("", "some", "a bit of", "a little bit of", "a lot of", "lots of", "extra", "a splash of", "no")
_SPOONS = ("", "some", "a bit of", "a little bit of", "a lot of", "lots of", "extra", "a spoon of", "no")
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

_COUNTS = _lines(
    "two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen,"
    "seventeen, eighteen, nineteen, twenty, twenty five, thirty, thirty five, forty, forty five, fifty, sixty, ninety"
)
_TENS = ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "a hundred")

VALUES: Mapping[str, tuple[str, ...]] = {
    "drink": _lines(
        """coffee, house coffee, drip coffee, iced coffee, black coffee, filter coffee, decaf coffee, mocha, iced mocha
        white mocha, latte, iced latte, vanilla latte, caramel latte, americano, iced americano, cappuccino
        iced cappuccino, espresso, macchiato, caramel macchiato, cortado, flat white, cold brew, lungo, ristretto
        affogato, green tea, black tea, mint tea, earl grey, iced tea, herbal tea, chamomile tea, lemon tea, ginger tea
        chai latte, hot chocolate, matcha, lemonade, orange juice, apple juice, sparkling water, hot water"""
    ),
    "size": _lines(
        """small, medium, large, extra large, regular, tall, double sized, eight ounce, ten ounce, twelve ounce
        sixteen ounce, twenty ounce"""
    ),
    "shots": ("single shot", "double shot", "triple shot", "quadruple shot", "half shot"),
    "roast": ("light roast", "medium roast", "dark roast", "french roast", "italian roast", "blonde roast"),
    "milk": _product(
        _AMOUNTS,
        _lines("milk, skim milk, whole milk, soy milk, almond milk, oat milk, coconut milk, cream, whipped cream"),
    ),
    "sugar": _product(_SPOONS, _lines("sugar, brown sugar, sweetener, honey, syrup, cinnamon")),
    "strength": ("extra strong", "very strong", "mild", "weak"),
    "cup": _lines("travel mug, paper cup, blue mug, glass, thermos"),
    "duration": (
        *_product(_COUNTS, ("minutes", "seconds")),
        *_product(_COUNTS[:11], ("hours",)),
        *(
            "one minute",
            "one hour",
            "an hour",
            "half an hour",
            "a minute",
            "an hour and a half",
            "a quarter of an hour",
        ),
    ),
    "time": (
        *_product(_HOURS, ("o'clock", "fifteen", "thirty", "forty five", "ten", "twenty", "fifty")),
        *_product(("half past", "quarter past", "quarter to"), _HOURS),
        *("noon", "midnight"),
    ),
    "day": _lines(
        """today, tonight, tomorrow, monday, tuesday, wednesday, thursday, friday, saturday, sunday, this weekend
        next week, this evening, this afternoon, this morning, tomorrow morning, tomorrow night, next monday
        next friday, the day after tomorrow"""
    ),
    "room": _lines(
        """kitchen, bedroom, living room, bathroom, hallway, garage, office, basement, dining room, garden, attic
        nursery, guest room, porch, study, balcony, laundry room, playroom, library, stairs"""
    ),
    "appliance": _lines(
        """lights, light, lamp, ceiling light, desk lamp, fan, heater, television, air conditioner, radio, blinds
        curtains, oven, dishwasher, washing machine, vacuum, speaker, humidifier, kettle, coffee maker, alarm system,
        sprinkler"""
    ),
    "color": _lines("red, green, blue, yellow, purple, orange, pink, warm white, cool white, turquoise, violet, amber"),
    "level": _product(_TENS, ("percent",)),
    "temperature": _product(
        _lines(
            """sixteen, eighteen, nineteen, twenty one, twenty two, twenty three, sixty five, sixty eight, seventy
            seventy two, seventy five"""
        ),
        ("degrees",),
    ),
    "scene": _lines("movie night, reading mode, party mode, sleep mode, dinner time, vacation mode, focus mode"),
    "artist": _lines(
        """mozart, beethoven, bach, chopin, vivaldi, debussy, miles davis, billie holiday, louis armstrong, nina simone
        ella fitzgerald, duke ellington, the copper foxes, silver harbor, paper lanterns, the velvet owls, northern echo
        golden sparrow, the wandering stones, crystal avenue, stella marlowe, felix romano, the night painters
        lucky thunder, ivory coast trio, river and rain, the brass monkeys, clara winters, diego santana
        electric meadow"""
    ),
    "song": _lines(
        """midnight river, dancing in the snow, paper moon, summer of stars, broken compass, letters from paris
        walking on clouds, the last train, cherry blossom, sweet december, lost in the echo, highway lullaby
        carry me home, ocean eyes, golden hour, shadows on the wall, wild horses running, a thousand candles
        winter sun, under the bridge, falling feathers, city of glass, hold the line, blue umbrella, desert wind
        moonlight sonata, the four seasons, clair de lune, what the heart knows, diamond rain"""
    ),
    "genre": _lines(
        """jazz, rock, classical, hip hop, country, reggae, techno, blues, folk, soul, disco, opera, salsa, heavy metal
        punk, ambient, bossa nova, gospel"""
    ),
    "playlist": _lines(
        """morning run, road trip, workout mix, deep focus, rainy day, dinner party, sunday chill, throwback hits
        sleepy time, summer favorites, bedtime stories, power hour"""
    ),
    "contact": _lines(
        """mom, dad, grandma, grandpa, uncle joe, aunt mary, my boss, my sister, my brother, my wife, my husband
        my neighbor, the doctor, the teacher, the landlord, the babysitter, the plumber, emma, oliver, sophia, liam
        isabella, noah, charlotte, ethan, amelia, lucas, mia, mason, harper, logan, evelyn, jackson, abigail, aiden
        chloe, samuel, natalie, benjamin, victoria, dylan, hannah, gabriel, zoe, julian, penelope, wyatt, claire, isaac
        naomi, theodore, priya, mohammed, yuki, carlos, fatima, ingrid, sven, anastasia, patrick, siobhan, rajesh
        emma carter, oliver stone, lucas meyer, sophia patel, david wong, sarah johnson, michael brown, jennifer lopez
        robert miller, patricia garcia, thomas anderson, barbara jenkins, kevin murphy, rebecca fisher, daniel kim
        laura schmidt, peter novak, helen fitzpatrick, frank zimmerman, monica delgado, george baker, alice cooper"""
    ),
    "message": _lines(
        """i'm running late, i'm on my way, call me back, i'll be there soon, happy birthday, see you later
        don't wait for me, i love you, dinner is ready, the meeting is cancelled, i forgot my keys, are you free
        pick up the kids, thanks for everything, good luck, sorry i missed you, let's meet outside, where are you
        i got stuck in traffic, congratulations, please open the door, the package arrived, i need your help
        bring an umbrella, see you at the station"""
    ),
    "item": _lines(
        """eggs, bread, butter, bananas, apples, rice, pasta, tomatoes, potatoes, onions, garlic, cheese, yogurt
        chicken, salmon, ground beef, olive oil, flour, salt, pepper, cereal, peanut butter, strawberry jam, spinach
        lettuce, carrots, cucumbers, mushrooms, avocados, lemons, grapes, blueberries, paper towels, toilet paper
        dish soap, laundry detergent, shampoo, toothpaste, batteries, light bulbs, dog food, cat litter, ice cream
        frozen pizza, crackers, chocolate cookies, orange marmalade, walnuts, maple bars, trash bags, aluminum foil
        diapers, vinegar, broccoli, zucchini, turkey, tuna, tofu, hummus, tortillas"""
    ),
    "list": ("shopping list", "grocery list", "to do list", "packing list", "wish list"),
    "city": _lines(
        """boston, denver, seattle, chicago, new york, san francisco, los angeles, houston, miami, atlanta, philadelphia
        portland, austin, dallas, phoenix, detroit, minneapolis, nashville, baltimore, toronto, montreal, vancouver
        london, manchester, edinburgh, dublin, berlin, munich, vienna, zurich, amsterdam, brussels, madrid, barcelona
        lisbon, rome, milan, athens, istanbul, cairo, nairobi, mumbai, delhi, singapore, tokyo, sydney, melbourne
        auckland, rio de janeiro, mexico city"""
    ),
    "place": _lines(
        """home, work, the airport, the train station, the nearest gas station, the hospital, the supermarket
        the pharmacy, the post office, the bank, the gym, the park, the museum, the nearest restaurant, the university
        the beach, the stadium, the hotel, the mall, the bakery, the nearest parking lot, the swimming pool
        the town hall, the zoo, the cinema"""
    ),
    "transport": ("by car", "by bus", "by bike", "on foot", "by subway", "by ferry"),
    "task": _lines(
        """water the plants, take out the trash, feed the cat, walk the dog, pay the rent, take my medicine
        pick up the laundry, book a flight, renew my passport, clean the windows, return the books, charge the phone
        buy a present, mow the lawn, wash the car, check the mail, submit the report, change the bed sheets
        defrost the freezer, sign the contract, back up my photos, stretch my legs, drink more"""
    ),
    "event": _lines(
        """team meeting, yoga class, dentist appointment, piano lesson, birthday party, job interview, book club
        lunch break, conference call, haircut, parent evening, football practice, budget review, cooking class"""
    ),
    "weather": _lines("rain, snow, sunny, windy, cloudy, foggy, thunderstorms, freezing, humid, hail"),
    "station": _lines("channel one, channel two, channel five, channel seven, channel nine, news radio, sports radio"),
    "topic": _lines(
        "headlines, sports news, business news, science news, football scores, stock market, traffic report"
    ),
    "language": _lines("french, german, spanish, italian, japanese, korean, arabic, portuguese, swedish, hindi"),
    **{f"digit{position}": _DIGITS for position in range(1, 9)},
}
