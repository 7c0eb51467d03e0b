import sys

from erjepa_recipe.finetune_erjepa import recipe_main

if __name__ == "__main__":
    sys.exit(recipe_main())
