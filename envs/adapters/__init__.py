"""Other libraries' environments as Moonmill's; `moonmill.registry.ADAPTERS` names them."""
