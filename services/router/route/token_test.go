package route_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/router/route"
)

func TestTokenIsFoundInHeaders(t *testing.T) {
	t.Parallel()
	const basic = "Basic Z2l0bGFiLWNpLXRva2VuOmdsY2J0LXg=" // gitlab-ci-token:glcbt-x
	for name, test := range map[string]struct {
		header map[string]string
		token  string
		final  bool
	}{
		"none":                             {nil, "", false},
		"runner":                           {map[string]string{"RUNNER-TOKEN": "a"}, "a", true},
		"job":                              {map[string]string{"JOB-TOKEN": "a"}, "a", true},
		"runner before job":                {map[string]string{"JOB-TOKEN": "b", "RUNNER-TOKEN": "a"}, "a", true},
		"job before user":                  {map[string]string{"PRIVATE-TOKEN": "b", "JOB-TOKEN": "a"}, "a", true},
		"user":                             {map[string]string{"PRIVATE-TOKEN": "lsp_a"}, "lsp_a", false},
		"runner of an old version":         {map[string]string{"PRIVATE-TOKEN": "glrt-a"}, "glrt-a", true},
		"job of an old version":            {map[string]string{"PRIVATE-TOKEN": "glcbt-a"}, "glcbt-a", true},
		"bearer":                           {map[string]string{"Authorization": "bearer  lsp_a "}, "lsp_a", false},
		"private before bearer":            {map[string]string{"PRIVATE-TOKEN": "a", "Authorization": "Bearer"}, "a", false},
		"job at the registry":              {map[string]string{"Authorization": basic}, "glcbt-x", true},
		"basic without a password":         {map[string]string{"Authorization": "Basic eA=="}, "", false},
		"another scheme of authentication": {map[string]string{"Authorization": "Digest a"}, "", false},
		"an empty bearer token":            {map[string]string{"Authorization": "Bearer "}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			for key, value := range test.header {
				header.Set(key, value)
			}
			token, final := route.FromHeader(header)
			require.Equal(t, test.token, token)
			require.Equal(t, test.final, final)
		})
	}
}

func TestTokenIsFoundInQuery(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a b", route.FromQuery("x=1&token=a%20b&token=c"))
	require.Equal(t, "a", route.FromQuery("%zz&token=a"), "the rest of the query is not the router's matter")
	require.Empty(t, route.FromQuery("x=token"))
	require.Empty(t, route.FromQuery(""))
}

func TestTokenIsFoundInBody(t *testing.T) {
	t.Parallel()
	const form, none = "application/x-www-form-urlencoded", ""
	for name, test := range map[string]struct{ contentType, body, token string }{
		"first":                   {"application/json", `{"token":"a","info":{"token":"b"}}`, "a"},
		"last":                    {"application/json; charset=utf-8", `{"i":{"token":"b","x":[[{}],[]]},"token":"a"}`, "a"},
		"escaped":                 {"application/json", ` { "x":1,"\u0074oken" : "\u0061" } `, "a"},
		"no media type":           {none, `{"token":"a"}`, "a"},
		"cut after the token":     {"application/json", `{"token":"a","x":{"y":`, "a"},
		"cut before the token":    {"application/json", `{"x":{"y":[1,2`, ""},
		"cut in the token":        {"application/json", `{"token":"ab`, ""},
		"name as a value":         {"application/json", `{"x":"token","y":"a"}`, ""},
		"only a nested token":     {"application/json", `{"x":{"token":"a"}}`, ""},
		"not a text":              {"application/json", `{"token":7}`, ""},
		"null":                    {"application/json", `{"token":null}`, ""},
		"no object":               {"application/json", `["token","a"]`, ""},
		"no JSON":                 {"application/json", `token=a`, ""},
		"form":                    {form, "x=1&token=a", "a"},
		"form that is JSON":       {form, `{"token":"a"}`, ""},
		"empty":                   {"application/json", "", ""},
		"deeper than any request": {"application/json", `{"x":` + strings.Repeat("[", route.MaxBody), ""},
		"behind the limit":        {"application/json", `{"x":"` + strings.Repeat("x", route.MaxBody) + `","token":"a"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.True(t, route.HasToken(test.contentType))
			require.Equal(t, test.token, route.FromBody(test.contentType, []byte(test.body)))
		})
	}
}

func TestOtherBodiesHaveNoToken(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{
		"text/plain", "multipart/form-data; boundary=x", "application/octet-stream", ";",
	} {
		require.False(t, route.HasToken(contentType), contentType)
	}
}

// FuzzFromBody compares with the decoder of the services, for objects with one token.
func FuzzFromBody(f *testing.F) {
	f.Add([]byte(`{"info":{"token":"b"},"token":"a"}`))
	f.Add([]byte(`{"token":"a"`))
	f.Add([]byte(`{"token":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		found := route.FromBody("application/json", body)
		var members map[string]json.RawMessage
		if len(body) > route.MaxBody || json.Unmarshal(body, &members) != nil || strings.Count(string(body), `token"`) != 1 ||
			strings.Contains(string(body), `\`) {
			return
		}
		var expected string
		if json.Unmarshal(members["token"], &expected) != nil {
			expected = ""
		}
		require.Equal(t, expected, found)
	})
}
