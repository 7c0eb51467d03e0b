import sys

from erjepa_recipe.lora_finetune_distributed_erjepa import recipe_main

if __name__ == "__main__":
    sys.exit(recipe_main())
