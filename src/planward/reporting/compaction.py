"""Matplotlib's SVG made small: the same picture in about a third of the bytes.

Groups are dissolved, coordinates are relative and rounded to a tenth of a point (about a sixth of a pixel on the
page), paths of one style that follow each other are one, and texts come last. Nothing that can be seen is lost.
"""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

_ROOT = "fill:none;stroke-linejoin:round"  # what every shape that does not say otherwise looks like
_NEEDLESS = {"fill:none", "stroke-dashoffset:0", "stroke-linecap:square", "stroke-linejoin:miter"}
_NUMBERS = {"M": 2, "L": 2, "Q": 4, "C": 6, "Z": 0}  # how many each command takes
_DRAWN, _DEFINED = 1, 2  # decimals of coordinates


def compacted(svg: str, label: str, ink: str, font_size: str) -> str:
    """An inline <svg role="img"> with the accessible name `label`, as wide as the page lets it be.

    Args:
        svg: as matplotlib writes it with `svg.fonttype: none`; ids are made anew, different in different figures.
        ink: the colour and
        font_size: the size of most texts, which they need not say one by one.
    """
    source = ET.fromstring(svg)
    root = ET.Element("svg", {"role": "img", "aria-label": label, "viewBox": source.get("viewBox", "")})
    root.set("style", _ROOT)
    defined, texts = ET.SubElement(root, "defs"), ET.Element("g", {"style": f"fill:{ink};font-size:{font_size}"})
    styles: dict[str, str] = {}  # of markers, by id
    for element, clip in _leaves(source):
        kind = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()} | clip
        style = _style(attributes.pop("style", ""))
        if kind == "defs":
            for each in (each for each in element if each.get("id")):  # not the style sheet, whose defaults are ours
                defined.append(_definition(each))
                styles[f"#{each.get('id')}"] = defined[-1].get("style", "")
        elif kind == "text":
            text = ET.SubElement(texts, "text", _placed(attributes))
            text.text = element.text
            _set_style(text, [one for one in style if one not in (f"fill:{ink}", f"font-size:{font_size}")])
        elif kind == "path" and style and "d" in attributes:  # none where all of it is out of view
            last = root[-1]
            data = _path(attributes.pop("d"), _DRAWN)
            joined = {"style": ";".join(style)} | attributes
            if (
                last.tag == "path"
                and {k: v for k, v in last.items() if k != "d"} == joined
                and "opacity" not in str(style)
            ):
                last.set("d", last.get("d", "") + data)
            else:
                ET.SubElement(root, "path", {"d": data} | joined)
        elif kind == "use":
            use = ET.SubElement(root, "use", _placed(attributes))
            own = styles[attributes["href"]].split(";")
            _set_style(use, [one for one in style if one not in own])
    root.append(texts)
    if not len(defined):
        root.remove(defined)
    return _own_ids(ET.tostring(root, encoding="unicode"))


def _leaves(element: ET.Element) -> Iterator[tuple[ET.Element, dict[str, str]]]:
    """All that is no group, in order, with the clip of the group that it is in."""
    for child in element:
        if child.tag.endswith("}g"):
            clip = {key: child.attrib[key] for key in ("clip-path",) if key in child.attrib}
            yield from ((leaf, clip | inner) for leaf, inner in _leaves(child))
        else:
            yield child, {}


def _definition(element: ET.Element) -> ET.Element:
    """A marker, a hatch or a clip, without namespaces."""
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    if "d" in attributes:
        attributes["d"] = _path(attributes["d"], _DEFINED)
    copy = ET.Element(element.tag.rpartition("}")[2], attributes)
    _set_style(copy, _style(attributes.pop("style", "")))
    copy.extend(_definition(child) for child in element)
    return copy


def _style(text: str) -> list[str]:
    """Declarations, those left out that are the default here."""
    found = [re.sub(r"\s*([:,])\s*", r"\1", each.strip()) for each in text.split(";")]
    return [each for each in found if each and each not in _NEEDLESS and not each.startswith("font-family")]


def _set_style(element: ET.Element, style: list[str]) -> None:
    element.attrib.pop("style", None)
    if style:
        element.set("style", ";".join(style))


def _placed(attributes: dict[str, str]) -> dict[str, str]:
    """Attributes with short coordinates, without a turn by nothing."""
    short = {key: _number(float(attributes[key]), _DRAWN) for key in ("x", "y") if key in attributes}
    turn = attributes.get("transform", "")
    return {key: value for key, value in (attributes | short).items() if key != "transform" or "rotate(-0 " not in turn}


def _path(data: str, decimals: int) -> str:
    """The path in relative coordinates; each is rounded before differences are taken, so errors do not add up."""
    unit = 10**decimals
    out, x, y, start = "", 0, 0, (0, 0)
    last = ""
    for command, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", data):
        at = [round(float(number) * unit) for number in text.split()]
        if len(at) != _NUMBERS[command.upper()] or (command.islower() and command != "z"):
            raise ValueError(f"unexpected path command {command}{text}")
        if command in "zZ":
            out, last, (x, y) = out + "z", "z", start
            continue
        moved = [value - (x, y)[place % 2] for place, value in enumerate(at)]
        if command == "M":
            name, shown = "M", at
            start = (at[0], at[1])
        elif command == "L" and 0 in moved:
            name, shown = ("v", moved[1:]) if moved[0] == 0 else ("h", moved[:1])
        else:
            name, shown = command.lower(), moved
        x, y = at[-2:]
        numbers = [_number(value / unit, decimals) for value in shown]
        separated = numbers[0] if name != last or numbers[0].startswith("-") else f" {numbers[0]}"
        for number in numbers[1:]:
            separated += number if number.startswith("-") else f" {number}"
        out += separated if name == last and name != "M" else name + separated.lstrip()
        last = name
    return out


def _number(value: float, decimals: int) -> str:
    """`-.5` for -0.50."""
    text = f"{value:.{decimals}f}".rstrip("0").rstrip(".") if decimals else f"{value:.0f}"
    return re.sub(r"^(-?)0\.", r"\1.", text) if text not in ("-0", "") else "0"


def _own_ids(svg: str) -> str:
    """Ids that no other figure has: from a digest of this one."""
    key = hashlib.sha256(svg.encode()).hexdigest()[:7]
    names = {name: f"f{key}{number}" for number, name in enumerate(re.findall(r' id="([^"]+)"', svg))}
    return re.sub(r'( id="|"#|url\(#)([\w-]+)', lambda found: found[1] + names.get(found[2], found[2]), svg)
