"""Variational attention: against torch's, and against Monte Carlo over draws of its weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from vcotta.bayes import (
    VariationalLinear,
    VariationalMultiheadAttention,
    gaussian_kl,
    is_variational,
    kl_divergence,
    sampling,
    to_point,
    to_variational,
    variational_parameters,
)
from vcotta.bayes.attention import VariationalOutProjection

QUERY, KEY, VALUE = torch.rand(3, 3, 5, 8, generator=torch.Generator().manual_seed(0)).unbind()


def attention(**options):
    """Attention whose biases are not the zeros it starts with."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.MultiheadAttention(8, 2, **{"batch_first": True, **options}).eval()
        for name, parameter in made.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter)
    return made


KINDS = {
    "packed": {},
    "without bias": {"bias": False},
    "other dimensions of keys and values": {"kdim": 6, "vdim": 4},
    "bias of keys and zeros": {"add_bias_kv": True, "add_zero_attn": True},
    "tokens first": {"batch_first": False},
}
BLOCKED = torch.ones(5, 5).triu(1).bool()
PADDED = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])
CALLS = {
    "plain": {},
    "without weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "a mask": {"attn_mask": BLOCKED},
    "a causal mask": {"attn_mask": BLOCKED, "is_causal": True, "need_weights": False},
    "a mask for each head": {"attn_mask": torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(1))},
    "padding": {"key_padding_mask": PADDED},
    "both masks": {"attn_mask": BLOCKED, "key_padding_mask": PADDED, "need_weights": False},
}

PAIRS = [  # with the hint of a causal mask torch hides added keys, which the mask itself does not
    (kind, call)
    for kind in KINDS
    for call in CALLS
    if not ("is_causal" in CALLS[call] and "add_zero_attn" in KINDS[kind])
]


def inputs(options):
    dims = options.get("kdim", 8), options.get("vdim", 8)
    tensors = QUERY, KEY[..., : dims[0]], VALUE[..., : dims[1]]
    return tensors if options.get("batch_first", True) else tuple(x.transpose(0, 1) for x in tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_keeps_names_weights_classes_and_outputs(kind):
    plain, x = attention(**KINDS[kind]), inputs(KINDS[kind])
    net = to_variational(plain)
    back = to_point(net)
    assert torch.equal(net(*x)[0], plain(*x)[0])
    assert [type(m) for m in back.modules()] == [type(m) for m in plain.modules()]
    assert list(back.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(back.state_dict().values(), plain.state_dict().values(), strict=True))
    gaussian = {name for name in plain.state_dict() if "bias_k" not in name and "bias_v" not in name}
    assert net.state_dict().keys() - plain.state_dict().keys() == {f"{name}_rho" for name in gaussian}
    assert {name for name, _, _ in variational_parameters(net)} == gaussian


@pytest.mark.parametrize("mode", ["local", "weight"])
@pytest.mark.parametrize(("kind", "call"), PAIRS)
def test_a_vanishing_sigma_gives_torchs_attention_whatever_the_arguments(kind, call, mode):
    plain, x = attention(**KINDS[kind]), inputs(KINDS[kind])
    expected, weights = plain(*x, **CALLS[call])
    net = to_variational(plain, sigma_ratio=1e-7)
    with sampling(net, mode):
        found, shown = net(*x, **CALLS[call])
    assert torch.allclose(found, expected, atol=1e-4)
    assert (shown is None) == (weights is None)
    if shown is not None:
        assert torch.allclose(shown, weights, atol=1e-4)


@pytest.mark.parametrize("need_weights", [True, False])
def test_tokens_without_a_batch_are_taken_as_torch_takes_them(need_weights):
    plain = attention()
    expected = plain(QUERY[0], QUERY[0], QUERY[0], need_weights=need_weights)
    with sampling(net := to_variational(plain, sigma_ratio=1e-7)):
        found = net(QUERY[0], QUERY[0], QUERY[0], need_weights=need_weights)
    assert torch.allclose(found[0], expected[0], atol=1e-4)
    assert found[0].shape == expected[0].shape
    assert (found[1] is None) == (not need_weights)


def monte_carlo(net, compute, draws):
    """Mean and variance of what is computed by the weights of torch's own attention, over draws of all of them."""
    point, known, drawn = to_point(net), dict(net.named_parameters()), {}
    for name, mean in point.named_parameters():
        noise = torch.randn(draws, *mean.shape)
        drawn[name] = (mean + F.softplus(known[f"{name}_rho"]) * noise).detach()
    outputs = torch.vmap(lambda weights: compute(point, weights))(drawn)
    return outputs.mean(0), outputs.var(0)


@pytest.mark.parametrize("mode", ["local", "weight"])
@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 4}, {"bias": False}], ids=str)
def test_draws_have_the_mean_and_variance_of_torchs_attention_over_draws_of_its_weights(mode, options):
    # With a single key the output is that of two affine layers, for which both ways to draw agree.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, draws = to_variational(attention(**options), sigma_ratio=0.3), 4000
        x = tuple(tensor[:1, :1] for tensor in inputs(options))
        expected, variance = monte_carlo(net, lambda point, weights: functional_call(point, weights, x)[0], draws)
        with torch.no_grad(), sampling(net, mode):
            if mode == "local":  # each image has its own noise
                found = net(*(tensor.expand(draws, -1, -1) for tensor in x))[0]
            else:
                once = torch.vmap(lambda _: net(*x)[0][0], randomness="different")
                found = once(torch.empty(draws))
    assert ((found.mean(0) - expected[0]).abs() < 5 * (2 * variance[0] / draws).sqrt()).all()
    assert (found.var(0) / variance[0]).log().abs().max() < 0.2


def test_draws_of_self_attention_over_many_tokens_agree_with_monte_carlo_in_their_projections():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, draws, x = to_variational(attention(), sigma_ratio=0.3), 4000, QUERY[:1]
        with torch.no_grad(), sampling(net):
            many = x.expand(draws, -1, -1)
            found = torch.cat(net._projected(many, many, many, True), -1)
        expected, variance = monte_carlo(
            net, lambda point, weights: F.linear(x[0], weights["in_proj_weight"], weights["in_proj_bias"]), draws
        )
    assert ((found.mean(0) - expected).abs() < 5.5 * (2 * variance / draws).sqrt()).all()
    assert (found.var(0) / variance).log().abs().max() < 0.25


def test_drawn_weights_are_the_same_for_all_tokens_and_local_noise_is_not():
    net, token = to_variational(attention()), torch.rand(1, 1, 8).expand(2, 4, 8)
    for mode, alike in {"weight": True, "local": False}.items():
        with torch.no_grad(), sampling(net, mode):
            found = net(token, token, token)[0].flatten(0, 1)
        assert torch.allclose(found, found[:1].expand_as(found), atol=1e-6) == alike


def test_gradients_reach_every_gaussian_and_match_finite_differences():
    net = to_variational(attention()).double()
    x = QUERY.double()

    def loss():
        with torch.random.fork_rng(), sampling(net):
            torch.manual_seed(0)
            return net(x, x, x)[0].square().sum()

    loss().backward()
    for name, parameter in net.named_parameters():
        place = parameter.grad.abs().flatten().argmax()
        with torch.no_grad():
            flat, values = parameter.view(-1), []
            for move in (1e-5, -2e-5):
                flat[place] += move
                values.append(loss())
            flat[place] += 1e-5
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(parameter.grad.view(-1)[place].item(), rel=1e-4), name


def test_the_divergence_is_the_sum_over_all_projections():
    p = to_variational(attention())
    q = to_variational(attention())
    with torch.no_grad():
        for parameter in q.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    pairs = zip(variational_parameters(q), variational_parameters(p), strict=True)
    expected = sum(gaussian_kl(a, F.softplus(b), c, F.softplus(d)) for (_, a, b), (_, c, d) in pairs)
    assert kl_divergence(p, p) == 0
    assert kl_divergence(q, p).item() == pytest.approx(expected.item(), rel=1e-4)
    assert len(list(variational_parameters(q))) == 4


def test_sigma_starts_at_the_ratio_times_the_rms_of_all_three_projections():
    plain = attention(kdim=6, vdim=4)
    net = to_variational(plain, sigma_ratio=0.3)
    weights = torch.cat([getattr(plain, f"{name}_proj_weight").flatten() for name in "qkv"])
    for name in ("q_proj_weight", "v_proj_weight", "in_proj_bias"):
        sigma = F.softplus(getattr(net, f"{name}_rho"))
        assert torch.allclose(sigma, 0.3 * weights.square().mean().sqrt(), rtol=1e-4)


def test_a_plain_checkpoint_loads_and_leaves_the_standard_deviations():
    net, other = to_variational(attention()), attention()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    rho = net.in_proj_weight_rho.clone()
    net.load_state_dict(other.state_dict())
    assert torch.equal(net.in_proj_weight, other.in_proj_weight)
    assert torch.equal(net.in_proj_weight_rho, rho)
    del (state := other.state_dict())["in_proj_bias"]
    with pytest.raises(RuntimeError, match="in_proj_bias"):
        net.load_state_dict(state)


def test_tied_projections_keep_one_standard_deviation():
    model = nn.ModuleList([attention(), attention()])
    model[1].in_proj_weight = model[0].in_proj_weight
    net = to_variational(model)
    assert net[0].in_proj_weight_rho is net[1].in_proj_weight_rho
    assert net[0].in_proj_bias_rho is not net[1].in_proj_bias_rho
    assert len(list(variational_parameters(net))) == 7


def encoder(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, **options)
        return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torchs_fused_encoder_does_not_bypass_the_noise(options, padded):
    plain, net = encoder(**options), to_variational(encoder(**options))
    mask = {"src_key_padding_mask": PADDED} if padded else {}
    with torch.no_grad():
        assert torch.equal(net(QUERY, **mask), plain(QUERY, **mask))  # fused, both of them
        with sampling(net):
            one, two = net(QUERY, **mask), net(QUERY, **mask)
        assert (one - two).abs().amax(-1).min() > 1e-4
        assert torch.equal(net(QUERY, **mask), plain(QUERY, **mask))
        with sampling(exact := to_variational(plain, sigma_ratio=1e-7)):
            same = exact(QUERY, **mask)
        assert torch.allclose(
            same[~PADDED], plain(QUERY)[~PADDED] if not padded else plain(QUERY, **mask)[~PADDED], atol=1e-4
        )


def test_linear_layers_beside_attention_that_stays_a_point_are_drawn_too():
    model = encoder()
    for layer in model.layers:
        layer.self_attn.__class__ = type("Own", (nn.MultiheadAttention,), {})
    with pytest.raises(ValueError, match=r"'layers\.0\.self_attn' \(Own\).*subclass"):
        to_variational(model)
    net = to_variational(model, unsupported="keep")
    assert type(net.layers[0].linear1) is VariationalLinear
    assert not is_variational(net.layers[0].self_attn)  # its output projection neither: its forward is not called
    with torch.no_grad(), sampling(net):
        assert not torch.equal(net(QUERY), net(QUERY))


def test_dropout_of_attention_works_in_training_mode():
    net = to_variational(attention(dropout=0.5), sigma_ratio=1e-7).train()
    with sampling(net):
        one, two = (net(QUERY, QUERY, QUERY)[0] for _ in range(2))
    assert not torch.allclose(one, two, atol=1e-3)


def test_one_made_by_hand_has_standard_deviations_everywhere():
    net = VariationalMultiheadAttention(8, 2, batch_first=True, sigma=0.02)
    assert type(net.out_proj) is VariationalOutProjection
    sigmas = [F.softplus(rho) for _, _, rho in variational_parameters(net)]
    assert len(sigmas) == 4
    assert all(torch.allclose(sigma, torch.tensor(0.02), rtol=1e-4) for sigma in sigmas)
    with pytest.raises(ValueError, match="Give the mask"), sampling(net):
        net(QUERY, QUERY, QUERY, is_causal=True)
