"""The one ``torch.library`` fragment that the operators of this package are defined in."""

import torch

LIBRARY = torch.library.Library("tensor_cast", "DEF")
