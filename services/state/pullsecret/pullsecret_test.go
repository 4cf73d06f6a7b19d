package pullsecret_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/pullsecret"
)

func TestHostsAreThoseOfImageReferences(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"docker.io", "registry.example", "registry.example:5000", "localhost:5000", "10.0.0.7"} {
		require.NoError(t, pullsecret.CheckHost(host), host)
	}
	for _, host := range []string{
		"", "https://registry.example", "registry.example/team", "Registry.example", "registry.example:",
		"registry.example:0", "registry.example:65536", "registry.example:5000:1", ":5000", "-a.example", "a..example",
		"*.example", "user@host",
		"a b", "registry.example:+1", "registry.example:007x", strings.Repeat("a", 254),
	} {
		require.True(t, fault.Is(pullsecret.CheckHost(host), errcode.InvalidArgument), host)
	}
}

func TestInvalidCredentialsAreRefusedAndNotQuoted(t *testing.T) {
	t.Parallel()
	const password = "secret-of-nobody"
	for name, test := range map[string]struct{ username, password, field string }{
		"no username":          {"", password, "username"},
		"a colon":              {"a:b", password, "username"},
		"a control character":  {"a\n", password, "username"},
		"a long username":      {strings.Repeat("a", 256), password, "username"},
		"no password":          {"ada", "", "password"},
		"a NUL":                {"ada", password + "\x00", "password"},
		"not UTF-8":            {"ada", password + "\xff", "password"},
		"a long password":      {"ada", strings.Repeat(password, 2000), "password"},
		"everything is faulty": {"", "", "password"},
	} {
		_, _, err := pullsecret.New("registry.example", test.username, test.password, time.Time{})
		require.True(t, fault.Is(err, errcode.InvalidArgument), name)
		require.Contains(t, fault.From(err).Details, test.field, name)
		require.NotContains(t, err.Error(), password, name)
	}
}

func TestConfigIsReadByKubelets(t *testing.T) {
	t.Parallel()
	values := seal.Values{}
	for _, host := range []string{"docker.io", "registry.example:5000"} {
		r, value, err := pullsecret.New(host, "ada", "p:w", time.Time{})
		require.NoError(t, err)
		require.Equal(t, pullsecret.Registry{Host: host, Username: "ada"}, r)
		require.NotContains(t, fmt.Sprintf("%v %+v %#v", value, value, value), "p:w")
		values[host] = value
	}
	config, err := pullsecret.Config(values)
	require.NoError(t, err)
	require.Len(t, config, 1)
	require.JSONEq(t, `{"auths":{
		"https://index.docker.io/v1/":{"auth":"YWRhOnA6dw=="},"registry.example:5000":{"auth":"YWRhOnA6dw=="}
	}}`, config[".dockerconfigjson"].Reveal())
}

func TestRegistriesAreSortedAndLimited(t *testing.T) {
	t.Parallel()
	var all []pullsecret.Registry
	var err error
	for _, host := range []string{"b", "c", "a", "b"} {
		all, err = pullsecret.Set(all, pullsecret.Registry{Host: host})
		require.NoError(t, err)
	}
	require.Equal(t, []pullsecret.Registry{{Host: "a"}, {Host: "b"}, {Host: "c"}}, all)
	for i := range 17 {
		all, err = pullsecret.Set(all, pullsecret.Registry{Host: fmt.Sprint("r", i)})
		require.NoError(t, err)
	}
	_, err = pullsecret.Set(all, pullsecret.Registry{Host: "z"})
	require.True(t, fault.Is(err, errcode.ResourceExhausted))
	changed, err := pullsecret.Set(all, pullsecret.Registry{Host: "a", Username: "ben"})
	require.NoError(t, err)
	require.Len(t, changed, 20)
	require.Equal(t, "ben", changed[0].Username)
}
