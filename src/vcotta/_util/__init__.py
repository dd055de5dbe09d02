"""Small tools that know nothing of networks or images."""
