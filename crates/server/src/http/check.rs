//! The filters that stand before every naming handler: what a name, an address or a port may look like.

use http::StatusCode;
use rollcall_core::model::service_key::GROUP_SEPARATOR;
use rollcall_core::{Metadata, ServiceKey, limits};

use crate::error::HttpFailure;
use crate::http::api::{Api, Lack};
use crate::http::params::Params;

/// What the filters have read on their way.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The service, if one is named.
    pub service: Option<ServiceKey>,
    /// The port, if one is given.
    pub port: Option<u16>,
    /// The metadata, empty unless given.
    pub metadata: Metadata,
    lack: Lack,
    /// A service name is given and blank.
    is_name_blank: bool,
}

impl Checked {
    /// The service.
    ///
    /// # Errors
    /// 400 when none is named.
    pub fn require_service(&self) -> Result<&ServiceKey, HttpFailure> {
        self.service.as_ref().ok_or_else(|| {
            if self.is_name_blank && self.lack == Lack::Argument {
                return HttpFailure::invalid("Param 'serviceName' is illegal, serviceName is blank");
            }
            HttpFailure::missing(self.lack, "serviceName", "String")
        })
    }

    /// The port.
    ///
    /// # Errors
    /// 400 when none is given.
    pub fn require_port(&self) -> Result<u16, HttpFailure> {
        self.port
            .ok_or_else(|| HttpFailure::missing(self.lack, "port", "Integer"))
    }
}

impl Params {
    /// Runs the filters and reads the service, if one is named.
    ///
    /// # Errors
    /// As recorded: bare text for anything the parameter checker refuses; for a malformed grouped name a page in v1.
    pub fn check(&self, metadata_limit: usize) -> Result<Checked, HttpFailure> {
        let named = self.check_names()?;
        for name in ["clusterName", "cluster"] {
            limits::check_cluster(self.get(name).unwrap_or_default())?;
        }
        limits::check_clusters(self.get("clusters").unwrap_or_default())?;
        limits::check_ip(self.get("ip").unwrap_or_default())?;
        let port = match self.get("port") {
            Some(port) => Some(limits::check_port(port.parse().unwrap_or(-1))?),
            None => None,
        };
        self.checked(named, port, metadata_limit)
    }

    /// The same for lists: `clusterName` may name several, and a port is not that of an instance.
    ///
    /// # Errors
    /// As [`Params::check`].
    pub fn check_list(&self, metadata_limit: usize) -> Result<Checked, HttpFailure> {
        let named = self.check_names()?;
        for name in ["clusterName", "clusters"] {
            limits::check_clusters(self.get(name).unwrap_or_default())?;
        }
        limits::check_ip(self.get("ip").unwrap_or_default())?;
        self.integer("port")?;
        self.checked(named, None, metadata_limit)
    }

    /// Group and name of the service, if one is named.
    fn check_names(&self) -> Result<Option<(&str, &str)>, HttpFailure> {
        let named = match self.get("serviceName") {
            Some(name) => Some(self.split_service(name)?),
            None => None,
        };
        limits::check_namespace(self.namespace())?;
        if let Some((_, name)) = named {
            limits::check_service_name(name)?;
        }
        limits::check_group(named.map_or(self.group(), |(group, _)| group))?;
        Ok(named)
    }

    fn checked(
        &self,
        named: Option<(&str, &str)>,
        port: Option<u16>,
        metadata_limit: usize,
    ) -> Result<Checked, HttpFailure> {
        let metadata = self.metadata()?;
        limits::check_metadata(&metadata, metadata_limit)?;
        Ok(Checked {
            service: named.map(|(group, name)| ServiceKey::new(self.namespace(), group, name)),
            port,
            metadata,
            lack: self.lack(),
            is_name_blank: named.is_none() && self.has("serviceName"),
        })
    }

    /// Group and name of `service`, which is grouped or plain.
    fn split_service<'a>(&'a self, service: &'a str) -> Result<(&'a str, &'a str), HttpFailure> {
        if !service.contains(GROUP_SEPARATOR) {
            return Ok((self.group(), service));
        }
        split_grouped(service).map_err(|failure| match self.api() {
            Api::V1 => {
                let text = format!("Service name filter error,caused: {};", failure.text);
                HttpFailure::page(StatusCode::BAD_REQUEST, text)
            }
            Api::V2 | Api::V3 => failure,
        })
    }
}

/// Group and name of a grouped name.
///
/// # Errors
/// 400 when it is not one.
pub fn split_grouped(service: &str) -> Result<(&str, &str), HttpFailure> {
    let refuse = |text: &str| HttpFailure::invalid(format!("Param 'serviceName' is illegal, {text}"));
    let parts = service.split_once(GROUP_SEPARATOR);
    // As a split that drops empty parts at the end sees it.
    let Some((group, name)) = parts.filter(|(_, name)| !name.split(GROUP_SEPARATOR).all(str::is_empty))
    else {
        return Err(refuse("it should be format as 'groupName@@serviceName'"));
    };
    if group.is_empty() {
        return Err(refuse("groupName can't be empty"));
    }
    Ok((group, name))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::error::HttpForm;
    use crate::http::params::BodyKind;

    fn read(query: &str) -> Params {
        Params::read(query, &Bytes::new(), &BodyKind::Form).unwrap()
    }

    fn refused(query: &str) -> HttpFailure {
        read(query).check(1024).unwrap_err()
    }

    #[test]
    fn a_grouped_name_beats_the_group_beside_it() {
        let checked = read("serviceName=g%40%40s&groupName=x").check(1024).ok();
        assert_eq!(
            checked.and_then(|c| c.service),
            Some(ServiceKey::new("public", "g", "s"))
        );
        let checked = read("serviceName=s&groupName=x&namespaceId=dev").check(1024).ok();
        assert_eq!(
            checked.and_then(|c| c.service),
            Some(ServiceKey::new("dev", "x", "s"))
        );
    }

    #[test]
    fn malformed_names_are_refused_as_recorded() {
        let page = refused("serviceName=@@a");
        assert_eq!(page.form, HttpForm::Page);
        assert_eq!(
            page.text,
            "Service name filter error,caused: Param 'serviceName' is illegal, groupName can't be empty;"
        );
        assert!(
            refused("serviceName=a@@")
                .text
                .contains("it should be format as 'groupName@@serviceName'")
        );
        for query in [
            "serviceName=a@@b@@c",
            "serviceName=grp@@@@a",
            "serviceName=a+b",
            "serviceName=s&clusterName=a,b",
            "serviceName=s&groupName=a@b",
            "namespaceId=a.b",
            "ip=not+an+ip",
        ] {
            assert_eq!(refused(query).form, HttpForm::Bare, "{query}");
        }
        for port in ["abc", "-1", "65536", "99999999999", "1.5"] {
            assert_eq!(
                refused(&format!("port={port}")).text,
                "Param 'port' is illegal, the value should be between 0 and 65535.\r\n"
            );
        }
    }

    #[test]
    fn later_generations_refuse_malformed_names_with_a_code() {
        for name in ["@@a", "a@@"] {
            let params = read(&format!("serviceName={name}")).of(Api::V2, Lack::Form);
            let failure = params.check(1024).unwrap_err();
            assert_eq!(
                (failure.form, failure.code.number),
                (HttpForm::Text, 20002),
                "{name}"
            );
        }
    }

    #[test]
    fn a_list_takes_several_clusters_and_any_number_as_port() {
        let params = read("serviceName=s&clusterName=a,b&port=70000").of(Api::V2, Lack::Argument);
        assert!(params.check_list(1024).is_ok() && params.check(1024).is_err());
        assert!(
            read("port=x")
                .of(Api::V2, Lack::Argument)
                .check_list(1024)
                .is_err()
        );
    }

    #[test]
    fn a_blank_name_is_told_from_a_missing_one_where_it_is_recorded() {
        let code = |query: &str, lack| {
            let checked = read(query).of(Api::V2, lack).check(1024).unwrap();
            checked.require_service().map_err(|f| f.code.number).map(|_| ())
        };
        assert_eq!(code("serviceName=", Lack::Argument), Err(20002));
        assert_eq!(code("serviceName=", Lack::Form), Err(10000));
        assert_eq!(code("", Lack::Argument), Err(10000));
    }
}
