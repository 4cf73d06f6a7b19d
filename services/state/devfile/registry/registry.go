// Package registry fetches devfiles from the registries that the operator has configured, and from nowhere else. Users
// choose what is fetched, so sizes, times and redirects are limited.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/devfile"
)

const (
	timeout      = 10 * time.Second
	maxRedirects = 3
	maxHeader    = 64 << 10
	maxURL       = 2000
)

// Client fetches devfiles. It is safe for concurrent use.
type Client struct {
	registries []*url.URL
	http       *http.Client
}

// New returns a client for registries with these URLs. The first one is the default. A transport of nil is one with
// the proxies of the environment.
func New(registries []string, transport http.RoundTripper) (*Client, error) {
	c := &Client{}
	for _, text := range registries {
		u, err := Parse(text)
		if err != nil {
			return nil, err
		}
		c.registries = append(c.registries, u)
	}
	if transport == nil {
		transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: maxHeader, TLSHandshakeTimeout: timeout,
			DisableKeepAlives: true, // few requests
		}
	}
	c.http = &http.Client{Transport: transport, Timeout: timeout, CheckRedirect: c.checkRedirect}
	return c, nil
}

// Parse reads the URL of a registry.
func Parse(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" || !isPlain(u) {
		return nil, fmt.Errorf("%.200q is not the URL of a registry such as https://registry.devfile.io", text)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

// isPlain reports whether the path of a URL has only one form.
func isPlain(u *url.URL) bool {
	return u.Opaque == "" && u.RawPath == "" && (u.Path == "" || u.Path == "/" ||
		path.Clean(u.Path) == strings.TrimSuffix(u.Path, "/") && strings.HasPrefix(u.Path, "/"))
}

// Fetch implements [devfile.Fetch]. It returns the fault invalid_argument if the registry is not configured or does not
// have the devfile, and unavailable if it does not answer.
func (c *Client) Fetch(ctx context.Context, p devfile.Parent) ([]byte, error) {
	from, err := c.locate(p)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.String(), nil)
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "parent: %s cannot be fetched", p)
	}
	request.Header.Set("Accept", "application/yaml, text/plain, */*;q=0.1")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, unavailable(ctx, err, from)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	switch {
	case response.StatusCode == http.StatusNotFound:
		return nil, fault.New(errcode.InvalidArgument, "parent: the registry %s has no devfile %s", from.Host, p).
			With("field", "devfile")
	case response.StatusCode != http.StatusOK:
		return nil, fault.New(errcode.Unavailable, "the registry of devfiles %s answers %d; try again later",
			from.Host, response.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, devfile.MaxSize+1))
	if err != nil {
		return nil, unavailable(ctx, err, from)
	}
	return data, nil // the reader of devfiles refuses one that is too large
}

// errRedirect is a redirect that is not followed.
var errRedirect = errors.New("it redirects to an address that is not configured, or too often")

func unavailable(ctx context.Context, err error, from *url.URL) error {
	reason := "does not answer"
	if errors.Is(err, errRedirect) {
		reason = "is not usable: " + errRedirect.Error()
	}
	if ctx.Err() != nil {
		return fault.Wrap(err, errcode.DeadlineExceeded, "the registry of devfiles %s %s in time", from.Host, reason)
	}
	return fault.Wrap(err, errcode.Unavailable, "the registry of devfiles %s %s; try again later", from.Host, reason)
}

// locate returns the address of a parent.
func (c *Client) locate(p devfile.Parent) (*url.URL, error) {
	if len(c.registries) == 0 {
		return nil, fault.New(errcode.FailedPrecondition, "parent: no registry of devfiles is configured; copy the content "+
			"of the parent, or ask an administrator to set devfile.registries").With("field", "devfile")
	}
	if p.URI != "" {
		u, err := url.Parse(p.URI)
		if err != nil || len(p.URI) > maxURL || !c.isConfigured(u) {
			return nil, c.notConfigured("parent.uri", p.URI)
		}
		return u, nil
	}
	base := c.registries[0]
	if p.RegistryURL != "" {
		base = nil
		for _, r := range c.registries {
			if strings.TrimSuffix(p.RegistryURL, "/") == r.String() {
				base = r
			}
		}
		if base == nil {
			return nil, c.notConfigured("parent.registryUrl", p.RegistryURL)
		}
	}
	parts := []string{"devfiles", p.ID}
	if p.Version != "" {
		parts = append(parts, p.Version)
	}
	return base.JoinPath(parts...), nil
}

// isConfigured reports whether an address is one of a configured registry.
func (c *Client) isConfigured(u *url.URL) bool {
	if u.User != nil || u.Fragment != "" || !isPlain(u) {
		return false
	}
	for _, r := range c.registries {
		if u.Scheme == r.Scheme && u.Host == r.Host && strings.HasPrefix(u.Path, r.Path+"/") {
			return true
		}
	}
	return false
}

func (c *Client) notConfigured(field, text string) error {
	known := make([]string, len(c.registries))
	for i, r := range c.registries {
		known[i] = r.String()
	}
	return fault.New(errcode.InvalidArgument, "%s: %.200q is not of a configured registry; use %s", field, text,
		strings.Join(known, ", ")).With("field", "devfile")
}

func (c *Client) checkRedirect(request *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects || !c.isConfigured(request.URL) {
		return errRedirect
	}
	return nil
}
