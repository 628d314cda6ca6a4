"""Views, pads, concatenations, gathers and scans of sizes that no vector divides."""

import torch


def model(x, index):
    y = torch.nn.functional.pad(x.transpose(1, 2), (1, 2))
    z = torch.cat([y, y.flip(-1)], -1).roll(1, -1)
    picked = z.gather(-1, index)
    return picked.cumsum(-1), z[..., ::3].reshape(2, -1).sort(-1)[0], torch.where(z > 0, z, 0.5)


torch.manual_seed(0)
example_inputs = (torch.randn(2, 5, 7), torch.randint(0, 16, (2, 7, 3)))
