"""Tries the terms and the policy of this folder on small worlds: real decisions, without a process or a wait."""

from example_terms import SMALLEST_FIRST, compactness, solitude

from poise.policy.rank import RANK_TERMS
from poise.policy.recipe import Recipe
from poise.policy.score import TERMS
from poise.policy.suites import Suite
from poise.testing import World

recipe = Recipe(name="alone", order={"compactness": 1.0}, score={"solitude": 1.0})
alone = Suite(recipe, {**TERMS, "solitude": solitude}, {**RANK_TERMS, "compactness": compactness})
for policy in (Suite(Recipe(name="plain")), alone, SMALLEST_FIRST):
    world = World(policy).nodes(2, cpu=3).job("first").round().job("gang", workers=3).job("large", cpu=3).job("small")
    world.round()
    print(f"{policy.name}:")
    for job in ("first", "gang", "large", "small"):
        print(f"  {job:<6} {' '.join(world.where(job)) or world.reasons(job)[0].sentence()}")
