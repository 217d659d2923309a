// An issuer on loopback. It prints its URL; its pages accept any name and password.
import Provider from "oidc-provider";
import http from "node:http";

const server = http.createServer();
server.listen(0, "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(url, {
    clients: [{
      client_id: "poise",
      client_secret: "client-secret",
      grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
      redirect_uris: ["http://127.0.0.1:7719/signed-in"],
    }],
    claims: { profile: ["preferred_username", "groups"] },
    conformIdTokenClaims: false,
    cookies: { keys: ["of a test"] },
    features: { deviceFlow: { enabled: true }, revocation: { enabled: true } },
    findAccount: (_, sub) => ({
      accountId: sub,
      claims: () => ({ sub, preferred_username: `${sub}@example.com`, groups: ["everybody", "team-vision"] }),
    }),
    issueRefreshToken: () => true,
  });
  server.on("request", provider.callback());
  console.log(url);
});
