// Package accesstest checks the scopes of services in their tests.
package accesstest

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"lockstep.internal/libs/access"
)

// reads matches the methods that change nothing. ExchangeToken returns a token with the scope of the caller's.
var reads = regexp.MustCompile(`^(Check|Explain|Get|List|Watch|WhoAmI|ConnectedAgents|ExchangeToken)`)

// RequireScopes fails unless every method of the protobuf package has a scope, and exactly those that change nothing
// have [access.ScopeRead].
func RequireScopes(t *testing.T, protobufPackage protoreflect.FullName, scopes access.Scopes) {
	t.Helper()
	methods := 0
	protoregistry.GlobalFiles.RangeFilesByPackage(protobufPackage, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				methods++
				name := string(service.Methods().Get(j).Name())
				scope, found := scopes["/"+string(service.FullName())+"/"+name]
				require.True(t, found && scope.Valid(), "%s.%s has no scope", service.Name(), name)
				require.Equal(t, reads.MatchString(name), scope == access.ScopeRead, "%s.%s has the scope %s",
					service.Name(), name, scope)
			}
		}
		return true
	})
	require.NotZero(t, methods, "package %s has no method", protobufPackage)
	require.Len(t, scopes, methods, "the table names methods that do not exist")
}
