package httpapi

import (
	_ "embed"
	"net/http"

	"github.com/gin-gonic/gin"
)

// openapi is the specification of the public API. A test holds it against the router and against real answers.
//
//go:embed openapi.yaml
var openapi []byte

func serveSpec(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", openapi) }
