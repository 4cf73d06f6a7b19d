package signin

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"lockstep.internal/services/gateway/page"
)

// Provider is an OpenID Connect provider. All fields are required but Scopes.
type Provider struct {
	// Issuer is the URL of the provider; its discovery document is below it. Empty for no provider.
	Issuer       string
	ClientID     string
	ClientSecret string
	// Scopes besides openid. Defaults to profile and email.
	Scopes []string
	// LoginClaim is the claim with the username of the person in Lockstep, such as preferred_username: of the ID token, or
	// else of the provider's userinfo. The provider must not let people choose it.
	LoginClaim string
}

var errNotDiscovered = errors.New("the discovery document of the provider has not been read yet")

// discovered is a provider whose discovery document was read.
type discovered struct {
	oauth    oauth2.Config
	provider *oidc.Provider
	verifier *oidc.IDTokenVerifier
}

// Discover reads the discovery document of the provider. Call it again if it fails.
func (s *SignIn) Discover(ctx context.Context) error {
	if s.Provider.Issuer == "" {
		return nil
	}
	// The provider keeps the context for its keys.
	ctx = oidc.ClientContext(context.WithoutCancel(ctx), s.client)
	provider, err := oidc.NewProvider(ctx, s.Provider.Issuer)
	if err != nil {
		return fmt.Errorf("sign-in: the OpenID Connect provider %s: %w", s.Provider.Issuer, err)
	}
	scopes := s.Provider.Scopes
	if len(scopes) == 0 {
		scopes = []string{"profile", "email"}
	}
	s.provider.Store(&discovered{
		provider: provider,
		verifier: provider.Verifier(&oidc.Config{ClientID: s.Provider.ClientID}),
		oauth: oauth2.Config{
			ClientID: s.Provider.ClientID, ClientSecret: s.Provider.ClientSecret, Endpoint: provider.Endpoint(),
			RedirectURL: "https://" + s.Zone.SignIn() + pathCallback,
			Scopes:      append([]string{oidc.ScopeOpenID}, scopes...),
		},
	})
	return nil
}

// toProvider sends a browser to the provider, to come back to what the flow names.
func (s *SignIn) toProvider(w http.ResponseWriter, r *http.Request, f flow) {
	provider := s.provider.Load()
	switch {
	case s.Provider.Issuer == "":
		s.page(w, r, http.StatusUnauthorized, page.Page{
			Title: "Sign in with the command line",
			Text:  "This installation has no identity provider. Run on your machine: lockstep ws open NAME",
		})
		return
	case provider == nil:
		s.fail(w, r, http.StatusServiceUnavailable, "sign in: the identity provider does not answer; try again in a moment",
			errNotDiscovered)
		return
	}
	f.State, f.Nonce, f.Verifier = rand.Text(), rand.Text(), oauth2.GenerateVerifier()
	f.ExpiresAt = s.now().Add(flowLifetime)
	sealed, err := s.seal(purposeFlow, f)
	if err != nil {
		s.fail(w, r, http.StatusInternalServerError, "sign in", err)
		return
	}
	setCookie(w, flowName(f.State), sealed, flowLifetime)
	http.Redirect(w, r, provider.oauth.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)),
		http.StatusSeeOther)
}

// login exchanges the code for an ID token and returns the login in it.
func (s *SignIn) login(ctx context.Context, code string, f flow) (string, error) {
	provider := s.provider.Load()
	if provider == nil {
		return "", errNotDiscovered
	}
	ctx = oidc.ClientContext(ctx, s.client)
	token, err := provider.oauth.Exchange(ctx, code, oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return "", fmt.Errorf("exchange the code: %w", err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return "", errors.New("the provider returned no ID token")
	}
	verified, err := provider.verifier.Verify(ctx, raw)
	if err != nil {
		return "", fmt.Errorf("verify the ID token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(verified.Nonce), []byte(f.Nonce)) != 1 {
		return "", errors.New("the ID token has another nonce")
	}
	claims := map[string]any{}
	if err := verified.Claims(&claims); err != nil {
		return "", fmt.Errorf("read the ID token: %w", err)
	}
	if _, ok := claims[s.Provider.LoginClaim]; !ok {
		if err := provider.userInfo(ctx, token, verified.Subject, &claims); err != nil {
			return "", err
		}
	}
	login, ok := claims[s.Provider.LoginClaim].(string)
	if !ok || login == "" {
		return "", fmt.Errorf("the provider has no claim %s about this person", s.Provider.LoginClaim)
	}
	return login, nil
}

// userInfo reads more claims: providers need not put those of scopes into the ID token (OpenID Connect Core, section
// 5.4).
func (d *discovered) userInfo(
	ctx context.Context, token *oauth2.Token, subject string, claims *map[string]any,
) error {
	info, err := d.provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return fmt.Errorf("read the userinfo: %w", err)
	}
	if info.Subject != subject {
		return errors.New("the userinfo is about another person than the ID token")
	}
	if err := info.Claims(claims); err != nil {
		return fmt.Errorf("read the userinfo: %w", err)
	}
	return nil
}
