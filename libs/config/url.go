package config

import (
	"log/slog"
	"net/url"
	"strings"
)

// URL is one URL, or several with commas between them, that may contain a password. String hides the
// password; Reveal does not.
type URL string

// Reveal returns the address with its password.
func (u URL) Reveal() string { return string(u) }

// String hides passwords. It hides the whole address when it cannot find the password.
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
	// A second @, or one outside of the user information: the password contains / or #.
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
		// nats://token@host: NATS takes a user without a password as a token.
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

// UnmarshalText sets the address without a check.
func (u *URL) UnmarshalText(text []byte) error {
	*u = URL(text)
	return nil
}
