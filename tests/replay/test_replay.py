"""EpisodicReplay equals the reference over a run, resumes, and checks its settings."""

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load, save

from erjepa.replay import EpisodicReplay, ReplaySettings, require_room
from erjepa.utils.checked import checked
from tests.harness.cases import DEVICES
from tests.harness.histories import make_reference
from tests.harness.memories import as_lists, contents

EMBED_DIM = 8


def make(**settings):
    given = {"embed_dim": EMBED_DIM, "seed": 7}
    keys = ("seed", "device", "reserved_slots")
    given |= {key: settings.pop(key) for key in keys if key in settings}
    return EpisodicReplay(ReplaySettings(**{"capacity": 12} | settings), **given)


def make_step(number, batch=5):
    """The pairs of one step; examples come back, and may repeat within the step."""
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(20, (batch,), generator=generator)
    segments = [([int(i)] * 3, [number, row]) for row, i in enumerate(ids)]
    embeddings = torch.randn(batch, EMBED_DIM, generator=generator)
    errors = torch.randint(9, (batch,), generator=generator) / 4
    return ids, segments, embeddings, errors


def run_step(replay, number):
    ids, segments, embeddings, errors = make_step(number)
    addresses = replay.encode(embeddings)
    draw = replay.draw(ids, segments, addresses)
    replay_errors = torch.tensor(
        [(number * 3 + i) % 8 / 4 for i in range(len(draw[0]))]
    )
    replay.refresh(draw, replay_errors)
    replay.write(ids, segments, addresses, errors)
    return draw, replay_errors


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("on_revisit", ["keep", "refresh", "append"])
@pytest.mark.parametrize("address", ["sparse", "dense"])
@pytest.mark.parametrize(
    "selection, order",
    [
        ("content", "batch"),
        ("content", "round_robin"),
        ("hard", "batch"),
        ("uniform", "batch"),
    ],
)
def test_a_run_equals_the_reference(selection, order, address, on_revisit, device):
    replay = make(
        budget=6,
        neighbors=2,
        neighbor_order=order,
        selection=selection,
        on_revisit=on_revisit,
        score_update_rate=0.25,
        address=address,
        address_top_k=6,
        device=device,
    )
    reference = make_reference(replay.memory)
    reference.on_revisit, reference.rate = on_revisit, 0.25
    if reference.projection is not None:
        reference.projection = reference.projection.cpu()
    replayed = 0
    for number in range(25):
        ids, segments, embeddings, errors = make_step(number)
        current = ids.tolist()
        if selection == "content":
            rules = {"budget": 6, "neighbors": 2, "fill": False, "order": order}
            expected = reference.content(embeddings, current, **rules)
        else:
            expected = reference.hard(current, budget=6)
        before = [reference.slots[n] for n in range(len(reference.slots))]
        draw, replay_errors = run_step(replay, number)
        if selection != "uniform":
            assert draw.slots == expected
        drawn = [before[n] for n in draw.slots]
        assert not {m["example"] for m in drawn} & set(current)
        assert as_lists(draw.segments) == [m["segments"] for m in drawn]
        reference.refresh(draw.slots, replay_errors.tolist())
        reference.write(current, segments, embeddings, errors.tolist())
        replayed += len(draw.slots)
    assert contents(replay) == (
        [m["example"] for m in reference.slots],
        [m["score"].item() for m in reference.slots],
        [m["count"] for m in reference.slots],
        [m["segments"] for m in reference.slots],
    )
    assert len(replay) == 12 and replayed > 100


@pytest.mark.parametrize("selection", ["content", "uniform", "hard", "current_batch"])
def test_a_resumed_run_draws_what_the_run_would_have(selection):
    replay = make(budget=6, selection=selection)
    for number in range(8):
        run_step(replay, number)
    state, tensors = replay.state, load(save(replay.tensors()))
    resumed = make(budget=6, selection=selection)
    run_step(resumed, 99)
    resumed.restore(state, tensors)
    for number in range(8, 16):
        ours, _ = run_step(replay, number)
        theirs, _ = run_step(resumed, number)
        assert theirs[:3] == ours[:3]  # the checksum is of one process
        assert contents(resumed) == contents(replay)


def test_uniform_draws_follow_the_seed_and_ignore_the_global_generator():
    def slots(seed, global_seed):
        torch.manual_seed(global_seed)
        replay = make(budget=4, selection="uniform", seed=seed)
        return [run_step(replay, number)[0].slots for number in range(6)]

    assert slots(1, 0) == slots(1, 1)
    assert slots(1, 0) != slots(2, 0)


def stored(origins, **settings):
    """A memory with one slot for each entry of ``origins``."""
    replay = make(selection="uniform", address="none", **settings)
    ids = torch.tensor([origin * 2**32 + i for i, origin in enumerate(origins)])
    segments = [([i],) for i in range(len(ids))]
    replay.write(ids, segments, None, torch.ones(len(ids)))
    return replay


def drawn_origins(replay, budget):
    ids = torch.tensor([10**6])
    return [i >> 32 for i in replay.draw(ids, [([0],)], None, budget).example_ids]


def test_draws_from_inherited_pairs_alone():
    replay = stored([0, 0, 0, -1, -2], draw_from="inherited")
    assert sorted(drawn_origins(replay, 2)) == [-2, -1]
    assert drawn_origins(stored([0, 0], draw_from="inherited"), 2) == []


def test_draws_as_often_from_each_origin():
    """Whatever number of slots each has; what cannot be divided goes to any of them."""
    replay = stored([-1] * 7 + [-2] * 2 + [0], draw_by="origin")
    assert sorted(drawn_origins(replay, 6)) == [-2, -2, -1, -1, 0, 0]
    single = [drawn_origins(replay, 1)[0] for _ in range(300)]
    assert all(70 < single.count(origin) < 130 for origin in (-2, -1, 0))


def test_current_batch_replays_the_first_current_pairs():
    replay = make(budget=3, selection="current_batch")
    ids, segments, embeddings, errors = make_step(0)
    addresses = replay.encode(embeddings)
    draw = replay.draw(ids, segments, addresses)
    assert draw[:3] == (ids.tolist()[:3], segments[:3], None)
    replay.refresh(draw, torch.ones(3))
    replay.write(ids, segments, addresses, errors)
    assert replay.memory.replay_counts.sum() == 0


@pytest.mark.parametrize("selection", ["hard", "current_batch"])
def test_without_a_budget_a_step_replays_as_many_pairs_as_it_has(selection):
    replay = make(selection=selection)
    for number in range(3):
        draw, _ = run_step(replay, number)
    assert len(draw.segments) == 5


def test_fill_reaches_content_selection():
    assert draw_after_one_write(make(budget=4, fill=True)).slots == [0, 0, 0, 0]
    assert draw_after_one_write(make(budget=4)).slots == [0]


def draw_after_one_write(replay):
    addresses = replay.encode(torch.ones(1, EMBED_DIM))
    replay.write(torch.tensor([50]), [([1], [2])], addresses, torch.ones(1))
    return replay.draw(torch.tensor([51]), [([3], [4])], addresses)


def test_address_sizes_default_to_multiples_of_the_embedding():
    replay = EpisodicReplay(ReplaySettings(capacity=2), embed_dim=64, seed=0)
    table = replay.memory.address_table
    assert table.projection.shape == (256, 64) and table.top_k == 8
    table = make(address_dim=16, address_top_k=3).memory.address_table
    assert table.projection.shape == (16, EMBED_DIM) and table.top_k == 3
    assert make(address_dim=16).memory.address_table.top_k == 1


def newest(request):
    """A selection of a user's own, for the test of dotted paths."""
    return request.eligible.nonzero().flatten().tolist()[::-1][: request.budget]


def careless(request):
    """Ignores what is eligible."""
    return list(range(len(request.memory)))[: request.budget]


def endless(request):
    """Ignores the budget."""
    return request.eligible.nonzero().flatten().tolist() * request.budget * 2


def as_tensor(request):
    return request.eligible.nonzero().flatten()[: request.budget]


def as_tensors(request):
    return list(as_tensor(request))


def beyond(request):
    return [len(request.memory)]


def nothing(request):
    """Forgets to return."""


def test_a_selection_of_the_users_own():
    replay = make(selection=f"{__name__}.newest", budget=2)
    ids = torch.tensor([1, 2, 3])
    segments = [([1], [1]), ([2], [2]), ([3], [3])]
    addresses = replay.encode(torch.ones(3, EMBED_DIM))
    replay.write(ids, segments, addresses, torch.ones(3))
    draw = replay.draw(torch.tensor([3]), segments[2:], addresses.rows(slice(2, 3)))
    assert draw.slots == [1, 0]


@pytest.mark.parametrize(
    "name", ["careless", "endless", "as_tensor", "as_tensors", "beyond", "nothing"]
)
def test_a_selection_that_breaks_the_rules_is_an_error(name):
    replay = make(selection=f"{__name__}.{name}", budget=3)
    addresses = replay.encode(torch.ones(2, EMBED_DIM))
    segments = [([1], [1]), ([2], [2])]
    replay.write(torch.tensor([1, 2]), segments, addresses, torch.ones(2))
    message = f"{name} must return a list of at most 3 eligible slots, as int; it "
    with pytest.raises(ValueError, match=message):
        replay.draw(torch.tensor([1, 9]), segments, addresses)


def test_takes_over_the_randomness_of_another_seed():
    replay, carried = make(selection="uniform"), make(selection="uniform", seed=8)
    for number in range(4):
        run_step(replay, number)
    carried.restore(replay.state, replay.tensors())
    for number in range(4, 8):
        ours, theirs = (run_step(run, number)[0] for run in (replay, carried))
        assert theirs[:3] == ours[:3]
    assert contents(carried) == contents(replay)


@pytest.mark.parametrize("keys", [{}, {"reserve": 0.5}, {"reserved_slots": 20}])
def test_a_memory_does_not_shrink(keys):
    larger, smaller = make(capacity=100, **keys), make(capacity=80, **keys)
    smaller.restore(make(capacity=80, **keys).state, smaller.tensors())
    with pytest.raises(ValueError, match="at least the checkpoint's 100, got 80;"):
        smaller.restore(larger.state, larger.tensors())


@dataclass(frozen=True)
class Section:
    replay: ReplaySettings


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"weight": -1.0},
            "replay.weight: input should be greater than or equal to 0 or 'auto'",
        ),
        ({"weight": "1"}, "replay.weight: "),
        ({"weight": float("inf")}, "replay.weight: "),
        ({"budget": 0}, "replay.budget: "),
        ({"selection": "best"}, "replay.selection must be one of content, .*'best'"),
        ({"neighbors": 0}, "replay.neighbors: "),
        (
            {"neighbor_order": "random"},
            "replay.neighbor_order: input should be 'batch' or 'round_robin'",
        ),
        ({"fill": 1}, "replay.fill: "),
        ({"capacity": 0}, "replay.capacity: "),
        ({"on_revisit": "replace"}, "replay.on_revisit: "),
        ({"mix": 1.5}, "replay.mix: "),
        ({"retention": "age"}, "replay.retention must be one of score, .* got 'age'"),
        ({"reserve": 1.0}, "replay.reserve: "),
        ({"score_update_rate": 0}, "replay.score_update_rate: "),
        ({"score_update_rate": 1.1}, "replay.score_update_rate: "),
        ({"score": "loss"}, "replay.score: "),
        ({"views": 1}, "replay.views: "),
        ({"views": False}, "no JEPA error to score by; set replay.score=lm"),
        ({"address": "none"}, "no addresses, which replay.selection=content needs"),
        ({"priority_exponent": -1}, "replay.priority_exponent: "),
        ({"weight_min": 0}, "replay.weight_min: "),
        (
            {"weight_min": 5},
            "replay.weight_min must be at most replay.weight_max \\(4.0",
        ),
        ({"address": "hash"}, "replay.address: "),
        ({"init_addresses": "new"}, "replay.init_addresses: "),
        (
            {"selection": "current_batch", "init_from": "run"},
            "replay.init_from starts with .*current_batch",
        ),
        ({"share": 0.001}, "replay.share: input should be .* or equal to 0.01"),
        ({"share": 0.3, "budget": 4}, "set one of the two"),
        ({"share": 0.3, "weight": 0.5}, "leave replay.weight at 1"),
        ({"share": 0.3, "selection": "content"}, "=content needs them. Set it to one"),
        ({"share": 0.3, "selection": "current_batch"}, "=current_batch needs them"),
        ({"draw_from": "old"}, "replay.draw_from: input should be 'all' or 'inher"),
        ({"address_dim": 0}, "replay.address_dim: "),
        (
            {"address_dim": 8, "address_top_k": 9},
            "replay.address_top_k must be at most replay.address_dim \\(8\\), got 9",
        ),
    ],
)
def test_wrong_settings_name_their_key(settings, message):
    with pytest.raises(ValueError, match=message):
        checked(Section, {"replay": settings}, "")


def test_top_k_is_checked_against_the_default_address_too():
    with pytest.raises(ValueError, match=r"replay.address_top_k must be .* \(32\)"):
        make(address_top_k=33)


def test_settings_that_are_right():
    ReplaySettings()
    ReplaySettings(selection="current_batch", weight=0, budget=1, address="dense")
    ReplaySettings(views=False, score="lm", weight="auto", retention="balanced")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"address": "dense"},
        {"address_dim": 40_000, "address_top_k": 3},
        {"capacity": 2, "address_dim": 999, "address_top_k": 7},
    ],
)
def test_the_memory_it_takes_is_known_before(settings):
    replay = make(**settings)
    memory, table = replay.memory, replay.memory.address_table
    tensors = [memory._example_ids, memory._scores, memory._replay_counts]
    tensors += [t for t in vars(table).values() if isinstance(t, torch.Tensor)]
    places = 8 * memory.capacity  # of the tokens, in a list
    taken = sum(tensor.nbytes for tensor in tensors) + places
    require_room(replay.settings, EMBED_DIM, taken)
    with pytest.raises(ValueError, match=rf"=\d+ slots of .* take {taken:,} bytes;"):
        require_room(replay.settings, EMBED_DIM, taken - 1)


def test_pairs_keep_their_random_numbers_in_a_run_with_another_seed():
    """By which a stratified memory chooses: they would compete anew otherwise."""
    settings = {"retention": "stratified", "selection": "uniform"}
    first = make(**settings)
    for number in range(8):
        run_step(first, number)
    second = make(seed=8, **settings)
    before = second.memory._seed
    second.restore(first.state, {k: v.clone() for k, v in first.tensors().items()})
    assert second.memory._seed == first.memory._seed != before
    marks = [replay.memory._marks[: len(replay)] for replay in (first, second)]
    assert torch.equal(*marks)
