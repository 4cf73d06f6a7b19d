package natsconn_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/internal/testcert"
	"lockstep.internal/libs/natsconn"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	authority := testcert.New(t)
	for name, tc := range map[string]struct {
		change func(*natsconn.Config)
		want   string // part of the only error; empty = valid
	}{
		"default": {func(*natsconn.Config) {}, ""},
		"several": {func(c *natsconn.Config) { c.URL = "nats://a:4222, tls://b,c:4222,wss://d" }, ""},
		"user":    {func(c *natsconn.Config) { c.User, c.PasswordFile = "7", config.SecretFile(file) }, ""},
		"TLS": {func(c *natsconn.Config) {
			c.TLS = natsconn.TLS{CAFile: authority.CAFile, CertFile: file, KeyFile: file}
		}, ""},
		"inbox":          {func(c *natsconn.Config) { c.InboxPrefix = "_INBOX_42.x" }, ""},
		"empty URL":      {func(c *natsconn.Config) { c.URL = "" }, "nats.url"},
		"scheme":         {func(c *natsconn.Config) { c.URL = "http://user:sesame@a" }, "nats.url"},
		"user alone":     {func(c *natsconn.Config) { c.User = "ada" }, "together"},
		"password alone": {func(c *natsconn.Config) { c.PasswordFile = config.SecretFile(file) }, "together"},
		"two credentials": {
			func(c *natsconn.Config) { c.TokenFile, c.CredentialsFile = config.SecretFile(file), file }, "more than one kind",
		},
		"no credentials": {func(c *natsconn.Config) { c.CredentialsFile = "/does/not/exist" }, "nats.credentials_file"},
		"no token": {
			func(c *natsconn.Config) { c.TokenFile = config.SecretFile("/does/not/exist") }, "nats.token_file",
		},
		"cert alone": {
			func(c *natsconn.Config) { c.TLS.CertFile = file }, "nats.tls: set cert_file and key_file together",
		},
		"no CA":          {func(c *natsconn.Config) { c.TLS.CAFile = "/does/not/exist" }, "nats.tls.ca_file"},
		"no authority":   {func(c *natsconn.Config) { c.TLS.CAFile = file }, "contains no certificate"},
		"inbox wildcard": {func(c *natsconn.Config) { c.InboxPrefix = "_INBOX.*" }, "nats.inbox_prefix"},
		"inbox dot":      {func(c *natsconn.Config) { c.InboxPrefix = "_INBOX." }, "nats.inbox_prefix"},
		"time-out":       {func(c *natsconn.Config) { c.ConnectTimeout = 0 }, "nats.connect_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := natsconn.DefaultConfig()
			tc.change(&cfg)
			binding, err := config.Bind(&cfg, "nats")
			require.NoError(t, err)
			err = binding.Validate()
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			var problems config.Problems
			require.ErrorAs(t, err, &problems)
			require.Len(t, problems, 1)
			require.Contains(t, problems[0].String(), tc.want)
			require.NotContains(t, err.Error(), "sesame")
		})
	}
}
