"""What every room speaks of: results and their JSON form, plans, expectations, numbers and their units."""
