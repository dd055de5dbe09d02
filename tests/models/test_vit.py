import pytest
import torch

from vcotta import to_variational
from vcotta.models import ViT, build_network, load_weights, save_weights
from vcotta.models.zoo import describe_network, rebuild_network


def tiny(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ViT(**{"image_size": 8, "depth": 2, "width": 8, "heads": 2, **options}).eval()


def test_vit_lite_has_the_published_number_of_weights():
    with torch.device("meta"):
        net = build_network("vit-32px")
    assert round(sum(p.numel() for p in net.parameters()) / 1e6, 2) == 3.72


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("vit-32px", {"image_size": 32, "patch": 4, "depth": 7, "width": 256, "heads": 4, "classes": 10}),
        ("vit-64px", {"image_size": 64, "patch": 4, "depth": 7, "width": 256}),
        ("ViT_4_64_32px", {"image_size": 32, "depth": 4, "width": 64, "heads": 2}),
    ],
)
def test_names_stand_for_sizes(name, attributes):
    with torch.device("meta"):
        net = build_network(name)
    assert {key: getattr(net, key) for key in attributes} == attributes


def test_the_pass_is_made_of_its_parts_and_takes_further_tokens(images):
    net, batch = tiny(), images()
    patches = net.patches(batch)
    tokens = net.tokens(patches)
    features = net.run_blocks(tokens)
    assert [tuple(x.shape) for x in (patches, tokens, features)] == [(6, 4, 8), (6, 5, 8), (6, 5, 8)]
    assert torch.equal(features, net.features(batch))
    assert torch.equal(net.classify(features), net(batch))
    prompted = torch.cat([tokens[:, :1], torch.ones(6, 3, 8), tokens[:, 1:]], 1)
    assert net.run_blocks(prompted).shape == (6, 8, 8)


def test_a_patch_is_the_convolution_of_its_pixels_and_patches_are_in_rows(images):
    net, batch = tiny(mean=None, std=None), images()
    by_hand = (
        torch.einsum("nchw,dchw->nd", batch[:, :, :4, 4:], net.patch_embed.proj.weight) + net.patch_embed.proj.bias
    )
    assert torch.allclose(net.patches(batch)[:, 1], by_hand, atol=1e-6)


def test_attention_is_that_of_torch(images):
    block = tiny().blocks[0].attn
    torchs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    torchs.load_state_dict(
        {
            "in_proj_weight": block.qkv.weight,
            "in_proj_bias": block.qkv.bias,
            "out_proj.weight": block.proj.weight,
            "out_proj.bias": block.proj.bias,
        }
    )
    x = torch.rand(3, 5, 8)
    assert torch.allclose(block(x), torchs(x, x, x)[0], atol=1e-6)


def test_positions_matter_and_patches_are_not_mixed_up(images):
    net, batch = tiny(), images()
    assert not torch.allclose(net(batch), net(batch.flip(-1)))
    with torch.no_grad():
        net.pos_embed.zero_()
    halves = batch.unflatten(-1, (2, 4)).flip(-2).flatten(-2)  # patches change places, their pixels do not
    assert torch.allclose(net(batch), net(halves), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"image_size": 30}, "multiple of `patch`"),
        ({"width": 9}, "multiple of `heads`"),
        ({"depth": 0}, "`depth` to be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        tiny(**options)


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"Expected images of 8 x 8 pixels.* got 8 x 12"):
        tiny()(torch.zeros(1, 3, 8, 12))


def test_a_described_network_is_rebuilt(images):
    net = to_variational(tiny(classes=3, mean=None, std=None))
    described = describe_network(net)
    again = rebuild_network(described, net.state_dict())
    assert (again.classes, again.mean, again.image_size) == (3, None, 8)


def test_a_file_of_another_vit_names_it(tmp_path):
    save_weights(tiny(image_size=32, depth=3), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"looks like vit-3-8-32px with 10 classes"):
        load_weights(tiny(image_size=32), tmp_path / "net.safetensors")
