"""The OpenAPI document of a gateway."""

from poise_serve.schema import document
from poise_serve.wire import ANYTHING, Forms

DIGITS = Forms(
    takes={"application/json": {"$ref": "#/components/schemas/digits.Picture"}},
    gives={"application/json": {"type": "integer"}},
    parts={"digits.Picture": {"type": "object"}},
)


def test_the_only_service_has_two_routes_and_each_of_several_has_its_own() -> None:
    one = document({"digits": DIGITS}, (), None)
    assert one["paths"]["/predict"]["post"]["requestBody"] == one["paths"]["/predict/digits"]["post"]["requestBody"]
    assert one["components"]["schemas"]["digits.Picture"] == {"type": "object"}
    two = document({"digits": DIGITS, "any": ANYTHING}, (), None)
    assert "/predict" not in two["paths"] and "/predict/any" in two["paths"]
    assert not any(path.startswith("/v1/") for path in two["paths"])


def test_each_route_of_a_front_names_its_models() -> None:
    front = document({}, (), {"/v1/completions": ["llama"], "/v1/embeddings": ["llama", "minilm"]})
    for path, known in (("/v1/completions", ["llama"]), ("/v1/embeddings", ["llama", "minilm"])):
        asked = front["paths"][path]["post"]
        model = asked["requestBody"]["content"]["application/json"]["schema"]["properties"]["model"]
        assert model["enum"] == known
        assert "x-poise-lane" in [header["name"] for header in asked["parameters"]]
    unknown = document({}, (), {"/v1/completions": []})["paths"]["/v1/completions"]["post"]["requestBody"]
    assert "enum" not in str(unknown)
