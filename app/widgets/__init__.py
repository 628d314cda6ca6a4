"""The widgets that panes and screens are made of."""
