// Requests to this server. The browser adds what it has been told of name and password; the page keeps none.

/** As fetch, for a path. The address of the page may have a name and password in it, which fetch would refuse. */
export const ask = (path, options) => fetch(location.origin + path, options);
