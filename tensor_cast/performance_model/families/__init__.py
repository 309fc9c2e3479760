"""How long the kernels of a family take: geometry and counts of a call, a device's efficiency -> seconds. No torch here."""
