"""Controllers, which choose the plan of each pass by what earlier passes brought."""
