"""Layouts: whatever the graph, boxes keep apart, moves keep off boxes, and what can be straight is straight."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachine_fields.drawing.layout import PAGE, Size, arrange
from statemachine_fields.drawing.ranks import backward_moves, connected_parts, ranks_of

SMALL = Size(80, 40)


def lay_out(*moves, states="", labels=None, size=SMALL, page=PAGE):
    """Lay out moves such as "AB"; the first state is the initial one."""
    names = dict.fromkeys([*states, *(state for move in moves for state in move)])
    sizes = dict.fromkeys(names, size)
    return arrange(sizes, {tuple(move): (labels or {}).get(move) for move in moves}, next(iter(names)), page=page)


def bezier(curve, part):
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = curve
    rest = 1 - part
    weights = rest**3, 3 * rest**2 * part, 3 * rest * part**2, part**3
    xs, ys = (x0, x1, x2, x3), (y0, y1, y2, y3)
    return sum(w * x for w, x in zip(weights, xs, strict=True)), sum(w * y for w, y in zip(weights, ys, strict=True))


def curves(route):
    assert len(route.points) % 3 == 1
    return [route.points[place : place + 4] for place in range(0, len(route.points) - 1, 3)]


def samples(route, count=6):
    return [bezier(curve, step / count) for curve in curves(route) for step in range(count + 1)]


def inside(point, box, by=0.0):
    return box.x + by < point[0] < box.x + box.width - by and box.y + by < point[1] < box.y + box.height - by


def on_border(point, box):
    return inside(point, box, -0.01) and not inside(point, box, 0.01)


def overlap(one, other):
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


sizes = st.builds(Size, st.integers(30, 220), st.integers(30, 90))
pages = st.sampled_from([300, PAGE, 10_000])
label_sizes = st.none() | st.builds(Size, st.integers(8, 150), st.integers(10, 16))


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 25))
    states = [f"S{number}" for number in range(count)]
    a_state = st.sampled_from(states)
    moves = draw(st.dictionaries(st.tuples(a_state, a_state), label_sizes, max_size=60))
    if draw(st.booleans()):  # most machines are near to a chain
        moves |= dict.fromkeys(pairwise(states))
    return {state: draw(sizes) for state in states}, moves, draw(a_state)


@settings(deadline=None, max_examples=60)
@given(graphs(), pages)
def test_whatever_the_graph_nothing_is_on_top_of_something_else(graph, page):
    boxes, moves, initial = graph
    layout = arrange(boxes, moves, initial, page=page)

    assert layout.boxes.keys() == boxes.keys()
    assert layout.routes.keys() == moves.keys()
    for state, box in layout.boxes.items():
        assert box.width >= boxes[state].width - 0.01
        assert box.height >= boxes[state].height - 0.01
        assert min(box.x, box.y) >= 0
        assert box.x + box.width <= layout.width + 0.01
        assert box.y + box.height <= layout.height + 0.01
    for one, other in combinations(layout.boxes.values(), 2):
        assert not overlap(one, other)
    for (source, target), route in layout.routes.items():
        assert on_border(route.points[0], layout.boxes[source])
        assert on_border(route.points[-1], layout.boxes[target])
        for point in samples(route):
            assert -0.01 <= point[0] <= layout.width + 0.01
            assert -0.01 <= point[1] <= layout.height + 0.01
            assert not any(inside(point, box, 0.01) for box in layout.boxes.values())
    for point in layout.start:
        assert not any(inside(point, box, 0.01) for box in layout.boxes.values())


@settings(deadline=None, max_examples=30)
@given(graphs(), pages)
def test_labels_are_on_no_box_and_on_no_other_label(graph, page):
    boxes, moves, initial = graph
    layout = arrange(boxes, moves, initial, page=page)
    places = list(layout.boxes.values())
    for move, size in moves.items():
        assert (layout.routes[move].label is None) == (size is None)
        if size is not None:
            x, y = layout.routes[move].label
            places.append(type(places[0])(x - size.width / 2, y - size.height / 2, size.width, size.height))
    for one, other in combinations(places, 2):
        assert not overlap(one, other)


@settings(deadline=None, max_examples=15)
@given(graphs())
def test_the_same_graph_has_the_same_layout(graph):
    assert arrange(*graph) == arrange(*graph)


@settings(deadline=None)
@given(graphs())
def test_turning_the_backward_moves_around_leaves_no_cycle(graph):
    boxes, moves, initial = graph
    between = [move for move in moves if move[0] != move[1]]
    backward = backward_moves(list(boxes), between, initial)
    turned = [move[::-1] if move in backward else move for move in between]
    rank = ranks_of(list(boxes), turned, initial)

    assert all(rank[source] < rank[target] for source, target in turned)
    assert rank[initial] == 0


def test_a_state_alone_has_a_start_dot_and_nothing_else():
    layout = lay_out(states="A")

    assert layout.routes == {}
    assert layout.start[1] == (layout.boxes["A"].x, 20)
    assert layout.width == layout.boxes["A"].x + 80


def test_a_short_chain_is_a_straight_line_from_left_to_right():
    layout = lay_out("AB", "BC", "CD")

    assert not layout.downwards
    assert {box.y for box in layout.boxes.values()} == {0}
    assert {y for route in layout.routes.values() for _, y in route.points} == {20}
    assert [layout.boxes[state].x for state in "ABCD"] == sorted(box.x for box in layout.boxes.values())


@pytest.mark.parametrize(("count", "size"), [(12, SMALL), (6, Size(200, 40))])
def test_what_is_too_long_for_a_page_runs_downwards(count, size):
    states = "ABCDEFGHIJKL"[:count]
    layout = lay_out(*map("".join, pairwise(states)), size=size)

    assert layout.downwards
    assert layout.width < PAGE
    assert len({box.x for box in layout.boxes.values()}) == 1


@pytest.mark.parametrize(("page", "downwards"), [(300, True), (PAGE, False), (10_000, False)])
def test_the_width_of_the_page_says_which_way_a_graph_runs(page, downwards):
    layout = lay_out("AB", "BC", "CD", "AD", page=page)

    assert layout.downwards == downwards
    assert layout.width <= page


def test_parts_of_a_graph_are_below_each_other_on_a_narrow_page():
    layout = lay_out("AB", "CD", "EF", page=300)

    assert layout.width <= 300
    assert layout.boxes["C"].y > layout.boxes["B"].y


def test_a_longer_way_to_the_same_state_leaves_the_main_chain_straight():
    layout = lay_out("AB", "AZ", "BC", "BZ", "CD", "DE", "CE")

    assert len({layout.boxes[state].y for state in "ABCDE"}) == 1


def test_labels_leave_the_main_chain_straight():
    layout = lay_out("AB", "BC", "BX", "CA", labels=dict.fromkeys(["AB", "BC", "BX", "CA"], Size(50, 14)))

    assert len({layout.boxes[state].y for state in "ABC"}) == 1


def test_a_move_and_its_opposite_are_two_parallel_lines():
    layout = lay_out("AB", "BA")
    there, back = layout.routes["A", "B"].points, layout.routes["B", "A"].points

    assert there[0][0] == back[-1][0] < there[-1][0] == back[0][0]
    assert len({y for _, y in there}) == len({y for _, y in back}) == 1
    assert abs(there[0][1] - back[0][1]) >= 7


def test_moves_to_the_same_state_share_a_lane():
    layout = lay_out("AB", "BC", "CD", "DE", "AZ", "BZ", "CZ", "DZ")
    lanes = [{y for _, y in layout.routes[source, "Z"].points[-4:]} for source in "AB"]

    assert lanes[0] == lanes[1]
    assert layout.routes["A", "Z"].points[-1] == layout.routes["B", "Z"].points[-1]


def test_a_move_to_the_state_itself_leaves_and_enters_on_one_side():
    layout = lay_out("AA", "AB")
    loop = layout.routes["A", "A"].points

    assert loop[0][1] == loop[-1][1] == layout.boxes["A"].y
    assert min(y for _, y in samples(layout.routes["A", "A"])) >= 0


def test_what_leads_to_the_initial_state_comes_after_it():
    layout = lay_out("AB", "XA")

    assert layout.boxes["X"].x == layout.boxes["B"].x > layout.boxes["A"].x


@pytest.mark.parametrize(
    ("states", "moves", "backward"),
    [("NOD", ["ND", "DO", "OD"], ("D", "O")), ("ANO", ["NO", "OA", "AN"], ("A", "N"))],
    ids=["of two in a circle the one declared first comes first", "states in alphabetical order are ranked by a walk"],
)
def test_the_move_that_leads_back_is_found(states, moves, backward):
    assert backward_moves(list(states), [tuple(move) for move in moves], "N") == {backward}


def test_a_state_that_nothing_leads_to_stands_next_to_where_it_leads():
    layout = lay_out("AB", "BC", "CD", "XD")

    assert layout.boxes["X"].x == layout.boxes["C"].x


def test_parts_are_told_apart_the_initial_one_first():
    assert connected_parts("ABCDE", [("A", "B"), ("D", "C"), ("C", "C")], "C") == [["C", "D"], ["A", "B"], ["E"]]


def test_many_single_states_fill_the_rows_of_a_page():
    layout = lay_out(states="ABCDEFGHIJKLMNOPQRSTUVWXY")

    assert layout.width <= PAGE
    assert 1 < len({box.y for box in layout.boxes.values()}) < 5


def test_many_ways_of_equal_length_lie_around_the_middle():
    layout = lay_out("AB", "AC", "AD", "AE", "AF", "BZ", "CZ", "DZ", "EZ", "FZ")

    assert len({layout.boxes[state].y + layout.boxes[state].height / 2 for state in "ADZ"}) == 1


def test_many_moves_at_one_side_of_a_box_have_room_between_them():
    layout = lay_out("AB", "BA", "AC", "CA", "AD", "DA")
    ends = sorted(route.points[0 if move[0] == "A" else -1][1] for move, route in layout.routes.items())

    assert min(after - before for before, after in pairwise(ends)) >= 5.9
