import sys

from erjepa_recipe.evaluate_erjepa import recipe_main

if __name__ == "__main__":
    sys.exit(recipe_main())
