package config

import (
	"log/slog"
	"net/url"
	"strings"
)

// URL is an address that may carry a password: one URL or several with commas between. It prints with
// the password hidden; Reveal returns it as it was written.
type URL string

// Reveal returns the address with its password.
func (u URL) Reveal() string { return string(u) }

// String hides passwords, and the whole address when it cannot be told where one is.
func (u URL) String() string {
	parts := strings.Split(string(u), ",")
	if strings.Contains(string(u), "@") && strings.Count(string(u), "://") != len(parts) {
		return hidden
	}
	for i, part := range parts {
		if !strings.ContainsAny(part, "@?=") {
			continue
		}
		redacted, ok := redact(part)
		if !ok {
			return hidden
		}
		parts[i] = redacted
	}
	return strings.Join(parts, ",")
}

func redact(address string) (string, bool) {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Scheme == "" || u.Host == "" {
		return "", false
	}
	// An @ that does not end the user information means that a password holds / or #.
	if at := strings.Count(address, "@"); at > 1 || (at == 1 && u.User == nil) {
		return "", false
	}
	query := u.Query()
	for key := range query {
		lower := strings.ToLower(key)
		if strings.Contains(lower, "pass") || strings.Contains(lower, "token") || strings.Contains(lower, "secret") {
			query.Set(key, "xxxxx")
			u.RawQuery = query.Encode()
		}
	}
	if u.User != nil {
		// nats://token@host: to NATS a user alone is the secret.
		if _, withPassword := u.User.Password(); !withPassword && isNATS(u.Scheme) {
			u.User = url.User("xxxxx")
		}
	}
	return u.Redacted(), true
}

func isNATS(scheme string) bool {
	return scheme == "nats" || scheme == "tls" || scheme == "ws" || scheme == "wss"
}

// GoString is String, for %#v.
func (u URL) GoString() string { return "config.URL(" + u.String() + ")" }

// LogValue is String.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText is String; JSON uses it too.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText takes the address as it is.
func (u *URL) UnmarshalText(text []byte) error {
	*u = URL(text)
	return nil
}
