package registry_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/registry"
)

func TestParseScope(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]registry.Access{
		"repository:g/demo/image:pull,push": {Type: "repository", Name: "g/demo/image", Actions: []string{"pull", "push"}},
		"repository:a__b-c.d:pull":          {Type: "repository", Name: "a__b-c.d", Actions: []string{"pull"}},
		"registry:catalog:*":                {Type: "registry", Name: "catalog", Actions: []string{"*"}},
		"other:host:5000/x:pull":            {Type: "other", Name: "host:5000/x", Actions: []string{"pull"}},
	} {
		got, err := registry.ParseScope(scope)
		require.NoError(t, err, scope)
		require.Equal(t, want, got)
	}
	for _, scope := range []string{
		"", "repository", "repository:", "repository:x", "repository::pull", ":x:pull", "repository:../x:pull",
		"repository:/x:pull", "repository:x/:pull", "repository:X:pull", "repository:a//b:pull", "repository:a b:pull",
		"repository:" + strings.Repeat("x", 256) + ":pull", "x:y:" + strings.Repeat("z", 1000),
	} {
		_, err := registry.ParseScope(scope)
		require.True(t, fault.Is(err, errcode.InvalidArgument), "%q: %v", scope, err)
	}
}

func TestGrant(t *testing.T) {
	t.Parallel()
	both := registry.Rights{Path: "G/Demo", Pull: true, Push: true}
	for name, test := range map[string]struct {
		rights registry.Rights
		scope  string
		want   []string
	}{
		"own image":             {both, "repository:g/demo:pull,push", []string{"pull", "push"}},
		"image below":           {both, "repository:g/demo/web/api:push,pull", []string{"pull", "push"}},
		"pull only":             {registry.Rights{Path: "g/x", Pull: true}, "repository:g/x:pull,push", []string{"pull"}},
		"push only":             {registry.Rights{Path: "g/x", Push: true}, "repository:g/x:pull,push", []string{"push"}},
		"repeated":              {both, "repository:g/demo:pull,pull", []string{"pull"}},
		"delete":                {both, "repository:g/demo:delete,*", nil},
		"project with a prefix": {both, "repository:g/demo2:pull", nil},
		"parent":                {both, "repository:g:pull", nil},
		"other project":         {both, "repository:g/other:pull", nil},
		"other type":            {both, "registry:catalog:*", nil},
		"no project":            {registry.Rights{Pull: true, Push: true}, "repository:g/demo:pull", nil},
	} {
		requested, err := registry.ParseScope(test.scope)
		require.NoError(t, err)
		granted := test.rights.Grant([]registry.Access{requested})
		require.NotNil(t, granted, name)
		if test.want == nil {
			require.Empty(t, granted, name)
			continue
		}
		require.Equal(t, []registry.Access{{Type: "repository", Name: requested.Name, Actions: test.want}}, granted, name)
	}
}

// FuzzGrant checks that nothing outside of the project is granted.
func FuzzGrant(f *testing.F) {
	f.Add("repository:g/demo/image:pull,push", "g/demo")
	f.Add("repository:g/demo2:pull", "g/demo")
	f.Fuzz(func(t *testing.T, scope, path string) {
		requested, err := registry.ParseScope(scope)
		if err != nil {
			return
		}
		for _, a := range (registry.Rights{Path: path, Pull: true}).Grant([]registry.Access{requested}) {
			require.Equal(t, []string{"pull"}, a.Actions)
			require.True(t, strings.HasPrefix(a.Name+"/", strings.ToLower(path)+"/"))
			require.NotContains(t, a.Name, "..")
		}
	})
}
